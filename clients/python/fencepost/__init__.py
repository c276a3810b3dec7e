"""Locks of the lock service `fencepost serve`. `fencepost.aio` has the same for asyncio.

    import fencepost

    locks = fencepost.Client("http://127.0.0.1:7070")
    with locks.lock("stock/42", wait=5) as lock:
        lock.check()                    # before each step that cannot be undone
        print(lock.token)               # for what the lock protects

An event loop in a thread of its own renews the locks of all clients of the process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import os
import threading
from typing import Any, Callable, Optional

from . import aio
from .errors import Busy, Denied, FencepostError, Invalid, Lost, Unreachable, Untrusted, WaitTimeout

__all__ = [
    "Busy", "Cancelled", "Client", "Denied", "Elector", "FencepostError", "Held", "Invalid", "Lock", "Lost", "Once", "Unreachable", "Untrusted",
    "WaitTimeout",
]


_log = logging.getLogger("fencepost")
_of_thread = threading.local()


def _thread() -> Any:
    """Returns what stands for this thread. Its number would not do, because a later thread may have the same one."""
    return _of_thread.__dict__.setdefault("me", object())


class Cancelled(FencepostError):
    """The wait for a lock was cancelled."""


class _Call:
    """A coroutine that runs in the event loop of this process. A process that was forked off makes a loop of its own."""

    _guard, _pid = threading.Lock(), 0
    _loop: asyncio.AbstractEventLoop

    def __init__(self, work: Any) -> None:
        cls = _Call
        if cls._pid != os.getpid():
            cls._guard = threading.Lock() if cls._pid else cls._guard  # a thread of the parent may have held it
            with cls._guard:
                if cls._pid != os.getpid():
                    cls._loop = asyncio.new_event_loop()
                    threading.Thread(target=cls._loop.run_forever, name="fencepost", daemon=True).start()
                    cls._pid = os.getpid()
        self._box: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._task: Any = None
        cls._loop.call_soon_threadsafe(self._start, work)

    def _start(self, work: Any) -> None:
        self._task = self._loop.create_task(self._deliver(work))
        if self._box.cancelled():
            self._task.cancel()

    async def _deliver(self, work: Any) -> None:
        result, error = None, None
        try:
            result = await work
        except BaseException as caught:
            error = caught
        if not self._box.set_running_or_notify_cancel():
            await self._give_back(result)
        elif error is not None:
            self._box.set_exception(error)
        else:
            self._box.set_result(result)

    async def _give_back(self, result: Any) -> None:
        """Releases a lock that nobody takes."""
        held = result.held if isinstance(result, aio.Once) else result
        if isinstance(held, aio.Held):
            with contextlib.suppress(FencepostError):
                await held.release()

    def cancel(self) -> None:
        if self._box.cancel():
            self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())

    def result(self) -> Any:
        """Waits for it. A caller that is interrupted cancels it."""
        try:
            return self._box.result()
        except concurrent.futures.CancelledError:
            raise Cancelled("the wait for the lock was cancelled") from None
        except BaseException as error:
            self.cancel()
            if self._box.done() and not self._box.cancelled() and error is not self._box.exception():
                # It was done already when its caller was interrupted.
                _Call(self._give_back(self._box.result()))
            raise


class Held:
    """A lock that was granted. `token` is for what the lock protects."""

    def __init__(self, held: aio.Held) -> None:
        self._held, self._lost = held, threading.Event()
        self.name, self.token = held.name, held.token
        held.on_loss(self._lost.set)

    loss = property(lambda self: self._held.loss, doc="How the lock was lost. `None`: it is held.")
    why = property(lambda self: self._held.why, doc="The reason that an operator gave for an eviction.")
    held = property(lambda self: self._held.held, doc="Whether it is held.")
    remaining = property(lambda self: self._held.remaining, doc="How many seconds it is still certain without another extension.")

    def check(self) -> None:
        """Raises `Lost` if the lock is lost. Ask before each step that cannot be undone."""
        self._held.check()

    def on_loss(self, tell: Callable[[], None]) -> None:
        """Calls `tell` once, in another thread, when the lock is lost. It must return soon."""
        self._held.on_loss(tell)

    def wait_lost(self, timeout: Optional[float] = None) -> bool:
        """Waits until the lock is lost. `False`: it was held at the end of the timeout."""
        return self._lost.wait(timeout) or not self.held

    def release(self, exit_code: Optional[int] = None) -> None:
        """Gives the lock back. Raises `Lost` if it was lost before."""
        if self._held.loss == "forked":
            return
        _Call(self._held.release(exit_code)).result()

    def _end(self, error: Optional[BaseException], exit_code: Optional[int] = None) -> None:
        try:
            self.release(exit_code)
        except FencepostError as lost:
            if error is None:
                raise
            # The error of the body says more.
            error.lost = lost  # type: ignore[attr-defined]
            if hasattr(error, "add_note"):
                error.add_note(str(lost))


class Lock:
    """A lock that is not yet held: `with`, `acquire()`, or a decorator of a function."""

    def __init__(self, make: Callable[[Any], aio.Lock], owner: Any) -> None:
        self._make, self._owner, self._of_thread = make, owner, threading.local()
        self._waits: set[_Call] = set()

    def acquire(self) -> Held:
        """Waits for the lock. Raises `Busy`, `WaitTimeout`, `Denied`, `Unreachable` and others."""
        call = _Call(self._make(self._owner or _thread()).acquire())
        self._waits.add(call)
        try:
            return Held(call.result())
        finally:
            self._waits.discard(call)

    def cancel(self) -> None:
        """Ends the waits of all threads for this lock: `acquire` raises `Cancelled` there."""
        for call in list(self._waits):
            call.cancel()

    def __enter__(self) -> Held:
        held = self.acquire()
        self._of_thread.__dict__.setdefault("stack", []).append(held)
        return held

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._of_thread.stack.pop()._end(error)

    def __call__(self, work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with self:
                return work(*args, **kwargs)

        return locked


class Once:
    """A job that runs once for each firing, although several hosts start it."""

    def __init__(self, make: Callable[[Any], aio.Once]) -> None:
        self._make = make
        self._once: Any = None
        self.first, self.held, self.run, self.exit_code = False, None, None, 0

    def __enter__(self) -> "Once":
        """`first` says whether this one runs it. Otherwise `run` says when and how it ran; `None`: it runs elsewhere now."""
        self._once = self._make(_thread())
        _Call(self._once.__aenter__()).result()
        self.first, self.run, self.exit_code = self._once.first, self._once.run, 0
        self.held = Held(self._once.held) if self.first else None
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self.held:
            self._once.exit_code = self.exit_code
            self.held._end(error, self._once.code_of(error))

    def __call__(self, work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def once(*args: Any, **kwargs: Any) -> Any:
            with Once(self._make) as run:
                return work(*args, **kwargs) if run.first else None

        return once


class Elector:
    """A candidate, in a thread of its own. While it leads, it calls `lead` with the lock: again and again, until `stop()`.

    `lead` returns soon after the loss of the lock, and soon after `stop()`: `wait_lost` of the lock returns in both cases. If it raises, or
    the lock is refused, that is logged, and after a second this is a candidate again.
    """

    def __init__(self, name: str, lock: Lock, lead: Callable[[Held], Any]) -> None:
        self._name, self._lock, self._lead, self._stopped = name, lock, lead, threading.Event()
        self._term: Optional[Held] = None
        self._thread = threading.Thread(target=self._run, name="candidate", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with self._lock as self._term:
                    if not self._stopped.is_set():
                        self._lead(self._term)
            except (Lost, Unreachable, Cancelled):
                pass
            except Exception:
                # A thread that ended here would leave a program that never leads again, and does not say so.
                _log.exception("the candidate for %s failed, and tries again", self._name)
                self._stopped.wait(1)
            self._stopped.wait(0.1)

    def stop(self) -> None:
        """Stands down, and waits until `lead` has returned and the lock is released."""
        self._stopped.set()
        while self._thread.is_alive():
            self._lock.cancel()
            if self._term:
                self._term._lost.set()
            self._thread.join(0.05)


class Client:
    """A client of the lock service. The arguments are those of `fencepost.aio.Client`.

    `urls`: the addresses of its copies; by default that in the variable FENCEPOST_URL. `token`: the access token, or `token_file`, a file
    that is read again when the service refuses the token; by default that in FENCEPOST_SERVICE_TOKEN. `ca`: a file with the authority of
    the service's certificate. `holder`: what operators see. `outage`: after so many seconds without an answer a request fails.
    """

    def __init__(self, *urls: str, **options: Any) -> None:
        self._options = (urls, options)
        self._client, self._pid = aio.Client(*urls, **options), os.getpid()

    def _aio(self) -> aio.Client:
        if self._pid != os.getpid():
            self._client, self._pid = aio.Client(*self._options[0], **self._options[1]), os.getpid()
        return self._client

    def _lock(self, kind: str, *args: Any, owner: Any = None, **options: Any) -> Lock:
        return Lock(lambda by: getattr(self._aio(), kind)(*args, owner=by, **options), owner)

    def lock(self, name: str, *, wait: Optional[float] = None, **options: Any) -> Lock:
        """A lock for one holder. `wait`: seconds, 0 for a try, `None` without a limit.

        Options: `ttl` (seconds, 30), how long the lock stays when this process dies; `holder` and `reason`, as operators see them; `owner`:
        who may lock again while holding, by default the thread."""
        return self._lock("lock", name, wait=wait, **options)

    write = lock

    def read(self, name: str, *, wait: Optional[float] = None, **options: Any) -> Lock:
        """A lock for many readers, beside which there is no `write`."""
        return self._lock("read", name, wait=wait, **options)

    def permits(self, name: str, permits: int, *, take: int = 1, wait: Optional[float] = None, **options: Any) -> Lock:
        """A lock for as many holders as there are permits. All callers give the same number."""
        return self._lock("permits", name, permits, take=take, wait=wait, **options)

    def hold(self, name: str, *, wait: Optional[float] = None, **options: Any) -> Lock:
        """A lock that the service renews by a stream. It is lost as soon as the stream breaks."""
        return self._lock("hold", name, wait=wait, **options)

    def once(self, name: str, window: Any, *, retry: bool = False, wait: Optional[float] = 0, **options: Any) -> Once:
        """A job that runs once for each firing; `window` is its period, in seconds or as in "24h". `retry`: again if a run failed."""
        return Once(lambda by: self._aio().once(name, window, retry=retry, wait=wait, owner=by, **options))

    def elect(self, name: str, lead: Callable[[Held], Any], **options: Any) -> Elector:
        """Waits to be the leader in the background, and calls `lead` whenever it is."""
        return Elector(name, self.lock(name, owner=object(), **options), lead)

    def check(self, name: str, *, max_age: Any = None, max_held: Any = None) -> "dict[str, Any]":
        """Tells whether a job of `once` has succeeded within `max_age`, and its lock is not held for longer than `max_held`.

        `status` is "ok", "warning", "critical" or "unknown", and `message` a sentence for people."""
        checked: "dict[str, Any]" = _Call(self._aio().check(name, max_age=max_age, max_held=max_held)).result()
        return checked

    def close(self) -> None:
        """Waits for what is done in the background, for at most 2 s."""
        if self._pid == os.getpid():
            _Call(self._client.close()).result()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
