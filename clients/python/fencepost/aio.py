"""Locks of the lock service for asyncio. `fencepost` has the same without it.

    from fencepost import aio

    locks = aio.Client("http://127.0.0.1:7070")
    async with locks.lock("stock/42", wait=5) as lock:
        print(lock.token)

If the lock is lost, the task inside of `async with` is cancelled, and the block ends with `Lost`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl
import uuid
from typing import Any, Awaitable, Callable, Optional, Union
from urllib.parse import urlencode

from ._http import clocks, request, since
from .errors import AlreadyRun, Busy, Denied, FencepostError, Invalid, Lost, Unreachable, Untrusted, WaitTimeout, of_problem

__all__ = [
    "Busy", "Client", "Denied", "FencepostError", "Held", "Invalid", "Lock", "Lost", "Once", "Unreachable", "Untrusted", "WaitTimeout",
]

# The codes of answers that decide nothing: the same request is sent again.
AGAIN = {"closing", "in-progress", "overloaded", "too-many-requests", "too-many-waiting", "unreachable"}
# How long the service may take for an answer, how much longer for a request that waits, and the longest wait of a stream with a limit.
ANSWER, QUEUED, LONGEST = 5.0, 10.0, 300.0

Seconds = Union[int, float]


def _duration(value: Union[Seconds, str]) -> str:
    return value if isinstance(value, str) else f"{max(1, round(value * 1000))}ms"


class Held:
    """A lock that was granted. `token` is for what the lock protects."""

    def __init__(self, client: "Client", want: dict[str, Any], sent: tuple[float, ...], grant: dict[str, Any]) -> None:
        self.name: str = want["name"]
        self.token: int = grant["token"]
        self._client, self._ttl, self._lease = client, want.get("ttl"), grant["lease"]
        self._sent, self._valid = sent, grant["valid_ms"] / 1000
        self._pid, self._entered = os.getpid(), 1
        self._loss: Optional[tuple[str, Optional[str]]] = None
        self._listeners: list[Callable[[], None]] = []
        self._keeper: Optional[asyncio.Task[None]] = None
        self._slot: Any = None
        self._leaving = False

    @property
    def remaining(self) -> float:
        """How many seconds the lock is still certain without another extension."""
        return 0.0 if self._loss or self._pid != os.getpid() else max(0.0, self._valid - since(self._sent))

    @property
    def loss(self) -> Optional[str]:
        """How the lock was lost. `None`: it is held."""
        if self._pid != os.getpid():
            return "forked"
        if self._loss is None and since(self._sent) >= self._valid:
            self._lose("expired")
        return self._loss[0] if self._loss else None

    @property
    def why(self) -> Optional[str]:
        """The reason that an operator gave for an eviction."""
        return self._loss[1] if self._loss else None

    @property
    def held(self) -> bool:
        return self.loss is None

    def check(self) -> None:
        """Raises `Lost` if the lock is lost. Ask before each step that cannot be undone."""
        if (loss := self.loss) is not None:
            raise Lost(self.name, loss, self.why)

    def on_loss(self, tell: Callable[[], None]) -> None:
        """Calls `tell` once, in the event loop, when the lock is lost."""
        self._listeners.append(tell)
        self._tell()

    def _lose(self, loss: str, why: Optional[str] = None) -> None:
        if self._loss is None and (loss == "released" or not self._leaving):
            self._loss = (loss, why)
            self._tell()

    def _tell(self) -> None:
        """Takes each listener once, because another thread may add one at the same time."""
        while self._loss and self._listeners:
            with contextlib.suppress(IndexError):
                tell = self._listeners.pop(0)
                if self._loss[0] != "released":
                    tell()

    def _keep(self) -> None:
        self._keeper = self._client._spawn(self._extend())

    async def _sleep(self, pause: float) -> None:
        """Sleeps while the lock is valid. It looks each second, because timers stop while the machine is suspended."""
        began = clocks()
        while (left := min(pause - since(began), self.remaining)) > 0:
            await asyncio.sleep(min(left, 1.0))

    async def _extend(self) -> None:
        pause = self._valid / 3
        while True:
            await self._sleep(pause)
            left, sent = self.remaining, clocks()
            if left <= 0:
                return self._lose("expired")
            try:
                limit = min(ANSWER, max(left / 3, 0.2), left)
                _, answer = await self._client._once("/v1/leases/extend", {"lease": self._lease, "ttl": self._ttl}, {}, limit)
                self._sent, self._valid, pause = sent, answer["valid_ms"] / 1000, answer["valid_ms"] / 3000
            except FencepostError as error:
                if error.code == "lease-ended":
                    return self._lose(error.problem.get("loss", "deleted"), error.problem.get("why"))
                pause = min(1.0, max(left / 10, 0.05))

    async def release(self, exit_code: Optional[int] = None) -> None:
        """Gives the lock back. Raises `Lost` if it was lost before. Cancelled, it goes on in the background."""
        if self._pid != os.getpid():
            return  # a child that was forked off has nothing to give back
        if self._slot is not None:
            self._entered -= 1
            if self._entered > 0:
                return self.check()
            if self._client._slots.get(self._slot) is self:
                del self._client._slots[self._slot]
        body = {"lease": self._lease, "exit_code": exit_code}
        try:
            self.check()
            self._leaving = True
            await asyncio.shield(self._client._spawn(self._client._release(body, self.remaining)))
        except FencepostError as error:
            if error.code == "lease-ended":
                self._leaving = False
                self._lose(error.problem.get("loss", "deleted"), error.problem.get("why"))
            if not isinstance(error, Lost):
                self.check()
                raise
            # Its holder has stopped: the next one need not wait for the time of a stream.
            self._client._spawn(self._client._forget(body))
            raise
        finally:
            self._lose("released")
            if self._keeper:
                self._keeper.cancel()


class Lock:
    """A lock that is not yet held: `async with`, `await acquire()`, or a decorator of a function."""

    def __init__(self, client: "Client", want: dict[str, Any], wait: Optional[Seconds], owner: Any, interrupt: bool) -> None:
        self._client, self._want, self._wait, self._owner, self._interrupt = client, want, wait, owner, interrupt
        self._blocks: dict[Any, list[_Block]] = {}

    async def acquire(self) -> Held:
        """Waits for the lock. Raises `Busy`, `WaitTimeout`, `Denied`, `Unreachable` and others. Cancelled, it leaves nothing behind."""
        owner = self._owner or asyncio.current_task()
        slot = (self._want["name"], self._want["mode"], owner)
        is_reentrant = self._want["mode"] != "permits" and "once" not in self._want
        held = self._client._slots.get(slot) if is_reentrant else None
        if held and held.held:
            held._entered += 1
            return held
        held = await self._grant()
        if is_reentrant:
            held._slot = slot
            self._client._slots[slot] = held
        return held

    async def _grant(self) -> Held:
        held = await self._client._acquire(self._want, self._wait)
        held._keep()
        return held

    async def __aenter__(self) -> Held:
        block = _Block(await self.acquire(), self._interrupt)
        self._blocks.setdefault(asyncio.current_task(), []).append(block)
        return block.held

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        task = asyncio.current_task()
        block = self._blocks[task].pop()
        if not self._blocks[task]:
            del self._blocks[task]
        await block.end(error)

    def __call__(self, work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(work)
        async def locked(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await work(*args, **kwargs)

        return locked


class Hold(Lock):
    """A lock that the service renews, for as long as a stream is open."""

    async def _grant(self) -> Held:
        return await self._client._hold(self._want, self._wait)


class _Block:
    """The work of a task under a lock."""

    def __init__(self, held: Held, interrupt: bool) -> None:
        self.held, self.task, self.interrupted = held, asyncio.current_task(), False
        if interrupt:
            held.on_loss(self.cancel)

    def cancel(self) -> None:
        # The task itself has asked whether it holds the lock, and has its answer.
        with contextlib.suppress(RuntimeError):
            if asyncio.current_task() is self.task:
                return
        self.interrupted = True
        self.task.cancel()

    async def end(self, error: Optional[BaseException], exit_code: Optional[int] = None) -> None:
        with contextlib.suppress(ValueError):
            self.held._listeners.remove(self.cancel)
        is_ours = self.interrupted and isinstance(error, asyncio.CancelledError)
        if self.interrupted and not is_ours:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # the body ended before it was cancelled
        if self.interrupted and hasattr(self.task, "uncancel") and self.task.uncancel() > 0:
            is_ours = False  # somebody else has cancelled it, too
        try:
            await self.held.release(exit_code)
        except FencepostError as lost:
            if error is None or is_ours:
                raise lost from None
            # The error of the body says more.
            error.lost = lost  # type: ignore[attr-defined]
            if hasattr(error, "add_note"):
                error.add_note(str(lost))


class Once:
    """A job that runs once for each firing, although several hosts start it."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.first, self.held, self.run = False, None, None
        self.exit_code = 0

    async def __aenter__(self) -> "Once":
        """`first` says whether this one runs it. Otherwise `run` says when and how it ran; `None`: it runs elsewhere now."""
        self.first, self.held, self.run, self.exit_code = False, None, None, 0
        try:
            self.held = await self._lock.acquire()
            self.first, self._block = True, _Block(self.held, self._lock._interrupt)
        except AlreadyRun as already:
            self.run = already.problem.get("run")
        except Busy:
            pass
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self.first:
            await self._block.end(error, self.code_of(error))

    def code_of(self, error: Optional[BaseException]) -> int:
        """Returns the exit code of a body that ended with this error, or without one."""
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        return self.exit_code if error is None else self.exit_code or 1

    def __call__(self, work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(work)
        async def once(*args: Any, **kwargs: Any) -> Any:
            async with Once(self._lock) as run:
                return await work(*args, **kwargs) if run.first else None

        return once


class _Outage:
    """Decides how long a request is repeated that gets no answer. The time counts from the first failure, or from `began`."""

    def __init__(self, patience: float, addresses: int, began: Optional[tuple[float, ...]]) -> None:
        self._patience, self._addresses, self._began = patience, addresses, began
        self._failed, self._pause = 0, 0.0

    async def pause(self, error: Unreachable) -> None:
        """Waits before the next attempt: not at the next address, and then for longer and longer. Raises the error if it is enough."""
        # A copy that closes has answered until now.
        self._began = clocks() if self._began is None or error.code == "closing" else self._began
        if since(self._began) >= self._patience:
            raise error
        self._failed += 1
        if self._failed >= self._addresses:
            self._pause = min(1.0, max(0.1, 2 * self._pause))
        await asyncio.sleep(self._pause)

    def answered(self) -> None:
        """An answer came, so the next failure is the first one."""
        self._began, self._failed, self._pause = None, 0, 0.0


class Client:
    """A client of the lock service. It has no connection of its own: each request opens one.

    `urls`: the addresses of its copies; by default that in the variable FENCEPOST_URL. `token`: the access token, or `token_file`, a file
    that is read again when the service refuses the token; by default that in FENCEPOST_SERVICE_TOKEN. `ca`: a file with the authority of
    the service's certificate. `holder`: what operators see. `outage`: after so many seconds without an answer a request fails.
    """

    def __init__(
        self, *urls: str, token: Optional[str] = None, token_file: Optional[str] = None, ca: Optional[str] = None,
        holder: Optional[str] = None, outage: Seconds = 10,
    ) -> None:
        self._urls = [url.rstrip("/") for url in urls or os.environ.get("FENCEPOST_URL", "").split()]
        if not self._urls:
            raise Invalid("give the address of the lock service, or set FENCEPOST_URL")
        self._file, self._holder, self._outage, self._at = token_file, holder, outage, 0
        self._token = token or (None if token_file else os.environ.get("FENCEPOST_SERVICE_TOKEN"))
        self._context = ssl.create_default_context(cafile=ca) if any(url.startswith("https:") for url in self._urls) else None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._slots: dict[Any, Held] = {}

    # What users call.

    def lock(self, name: str, *, wait: Optional[Seconds] = None, **options: Any) -> Lock:
        """A lock for one holder. `wait`: seconds, 0 for a try, `None` without a limit.

        Options: `ttl` (seconds, 30), how long the lock stays when this process dies; `holder` and `reason`, as operators see them;
        `interrupt=False`: a loss does not cancel the task; `owner`: who may lock again while holding, by default the task."""
        return self._lock("exclusive", name, wait, **options)

    write = lock

    def read(self, name: str, *, wait: Optional[Seconds] = None, **options: Any) -> Lock:
        """A lock for many readers, beside which there is no `write`."""
        return self._lock("shared", name, wait, **options)

    def permits(self, name: str, permits: int, *, take: int = 1, wait: Optional[Seconds] = None, **options: Any) -> Lock:
        """A lock for as many holders as there are permits. All callers give the same number."""
        return self._lock("permits", name, wait, more={"permits": permits, "take": take}, **options)

    def hold(self, name: str, *, wait: Optional[Seconds] = None, **options: Any) -> Lock:
        """A lock that the service renews by a stream. It is lost as soon as the stream breaks."""
        return self._lock("exclusive", name, wait, kind=Hold, **options)

    def once(self, name: str, window: Union[Seconds, str], *, retry: bool = False, wait: Optional[Seconds] = 0, **options: Any) -> Once:
        """A job that runs once for each firing; `window` is its period, in seconds or as in "24h". `retry`: again if a run failed."""
        more = {"once": {"window": _duration(window), "retry": retry}}
        return Once(self._lock("exclusive", name, wait, more=more, **options))

    async def elect(self, name: str, lead: Callable[[Held], Awaitable[Any]], **options: Any) -> None:
        """Waits to be the leader, and leads: again and again, until it is cancelled. At the loss `lead` is cancelled, and awaited."""
        while True:
            with contextlib.suppress(Lost, Unreachable):
                async with self.lock(name, owner=object(), **options) as held:
                    await lead(held)
            await asyncio.sleep(0.1)

    async def check(
        self, name: str, *, max_age: Union[Seconds, str, None] = None, max_held: Union[Seconds, str, None] = None
    ) -> dict[str, Any]:
        """Tells whether a job of `once` has succeeded within `max_age`, and its lock is not held for longer than `max_held`.

        `status` is "ok", "warning", "critical" or "unknown", and `message` a sentence for people."""
        limits = {"max_age": max_age, "max_held": max_held}
        query = {"name": name, **{limit: _duration(value) for limit, value in limits.items() if value is not None}}
        _, _, answer = await self._ask(f"/v1/check?{urlencode(query)}", None, {}, 0)
        return answer  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Waits for what is done in the background, for at most 2 s."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2)

    # How it works.

    def _lock(
        self, mode: str, name: str, wait: Optional[Seconds], *, ttl: Seconds = 30, holder: Optional[str] = None,
        reason: Optional[str] = None, owner: Any = None, interrupt: bool = True, more: Optional[dict[str, Any]] = None,
        kind: Callable[..., Lock] = Lock,
    ) -> Lock:
        process = {"host": socket.gethostname(), "pid": os.getpid()}
        want = {"name": name, "mode": mode, "ttl": _duration(ttl), "holder": holder or self._holder, "reason": reason, "process": process}
        return kind(self, {**want, **(more or {})}, wait, owner, interrupt)

    def _spawn(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        if self._file and self._token is None:
            with open(self._file) as file:
                self._token = file.read().strip()
        return {**more, **({"Authorization": f"Bearer {self._token}"} if self._token else {})}

    def _has_new_token(self) -> bool:
        before, self._token = self._token, None if self._file else self._token
        return self._headers({}).get("Authorization") != (f"Bearer {before}" if before else None)

    async def _once(self, path: str, body: Optional[dict[str, Any]], headers: dict[str, str], limit: float) -> tuple[int, Any]:
        """Sends a request once, twice with a new access token. Raises what the service says, or `Unreachable`."""
        at, url = self._at, self._urls[self._at]

        async def send() -> tuple[int, Any]:
            async with request(url, path, body, self._headers(headers), self._context) as response:
                return response.status, await response.json()

        broke = False
        try:
            try:
                status, answer = await asyncio.wait_for(send(), limit)
            except (ConnectionResetError, BrokenPipeError, EOFError):
                # The position in the queue is kept at this address.
                broke = True
                status, answer = await asyncio.wait_for(send(), limit)
            if status == 401 and self._has_new_token():
                status, answer = await asyncio.wait_for(send(), limit)
        except ssl.SSLCertVerificationError as error:
            raise Untrusted(f"{url}: {error.verify_message}; give the authority's file with ca=") from None
        except (OSError, EOFError, ValueError, IndexError, asyncio.TimeoutError) as error:
            self._leave(at)
            raise Unreachable(f"{url} does not answer: {error or 'no answer in time'}", {"code": "unreachable"}) from None
        if status < 300 and (status == 204 or isinstance(answer, dict)):
            return status, answer
        error = self._refusal(url, status, answer)
        if isinstance(error, Unreachable):
            self._leave(at)
        # An earlier request may have had its effect.
        error.repeated = broke
        raise error

    def _refusal(self, url: str, status: int, answer: Any) -> FencepostError:
        if not isinstance(answer, dict) or "code" not in answer:
            if status >= 500:
                return Unreachable(f"a proxy answers with status {status}", {"code": "unreachable"})
            return Invalid(f"{url} answers with status {status}, and is no lock service")
        if answer["code"] in AGAIN:
            return Unreachable(f"{answer['code']}: {answer['detail']}", answer)
        return of_problem(answer)

    def _leave(self, at: int) -> None:
        """Goes to the next address, once for all requests that failed at this one."""
        if self._at == at:
            self._at = (at + 1) % len(self._urls)

    async def _ask(
        self, path: str, body: Optional[dict[str, Any]], headers: dict[str, str], waits: float, patience: Optional[float] = None
    ) -> tuple[tuple[float, ...], int, Any]:
        """Sends a request until an answer decides. Returns when that one was sent, the status and the answer."""
        outage = _Outage(self._outage if patience is None else patience, len(self._urls), None if waits else clocks())
        while True:
            sent = clocks()
            try:
                status, answer = await self._once(path, body, headers, ANSWER + waits)
                return sent, status, answer
            except Unreachable as error:
                await outage.pause(error)

    async def _acquire(self, want: dict[str, Any], wait: Optional[Seconds]) -> Held:
        key, began = {"Idempotency-Key": str(uuid.uuid4())}, clocks()
        decided = False
        try:
            while True:
                left = None if wait is None else wait - since(began)
                if wait == 0:
                    text: Optional[str] = None
                elif left is None or left > QUEUED:
                    text = "forever"
                else:
                    text = _duration(max(left, 0))
                sent, status, answer = await self._ask("/v1/acquire", {**want, "wait": text}, key, QUEUED if text else 0)
                if status == 200:
                    decided = True
                    return Held(self, want, sent, answer)
        except FencepostError as error:
            decided = not isinstance(error, (Unreachable, Untrusted))
            raise
        finally:
            if not decided:
                # It goes on although this task is cancelled.
                await asyncio.wait([self._spawn(self._withdraw(want, key))], timeout=2)

    async def _release(self, body: dict[str, Any], patience: float) -> None:
        repeated = False
        try:
            with contextlib.suppress(Unreachable):
                return await self._once("/v1/leases/release", body, {}, min(ANSWER, patience)) and None
            repeated = True
            await self._ask("/v1/leases/release", body, {}, 0, patience)
        except FencepostError as error:
            # The first release may have taken effect, and only its answer was lost.
            is_ours = error.code == "lease-ended" and error.problem.get("loss", "deleted") in ("deleted", "released")
            if not is_ours or not (repeated or error.repeated):
                raise

    async def _withdraw(self, want: dict[str, Any], key: dict[str, str]) -> None:
        with contextlib.suppress(FencepostError):
            await self._ask("/v1/withdraw", want, key, 0)

    async def _forget(self, body: dict[str, Any]) -> None:
        with contextlib.suppress(FencepostError):
            await self._once("/v1/leases/release", body, {}, ANSWER)

    async def _hold(self, want: dict[str, Any], wait: Optional[Seconds]) -> Held:
        began, outage = clocks(), _Outage(self._outage, len(self._urls), None)
        while True:
            left = None if wait is None else max(0.001, wait - since(began))
            text = None if wait == 0 else "forever" if left is None else _duration(min(left, LONGEST))
            try:
                return await self._open({**want, "wait": text}, outage)
            except WaitTimeout:
                if left is None or left <= LONGEST:
                    raise
            except Unreachable as error:
                await outage.pause(error)

    async def _open(self, want: dict[str, Any], outage: _Outage) -> Held:
        granted: asyncio.Future[Held] = asyncio.get_running_loop().create_future()
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        keeper = self._spawn(self._stream(want, granted, told, outage))
        try:
            held = await asyncio.shield(granted)
        except BaseException as error:
            if isinstance(error, Unreachable) or not isinstance(error, FencepostError):
                # It goes on although this task is cancelled.
                self._spawn(self._give_up(keeper, told))
            raise
        held._keeper = keeper
        return held

    async def _give_up(self, keeper: "asyncio.Task[None]", told: "asyncio.Future[str]") -> None:
        """Ends a stream, and releases what it may have been granted at that moment: its first event has the lease."""
        await asyncio.wait([keeper, told], timeout=1, return_when=asyncio.FIRST_COMPLETED)
        keeper.cancel()
        if told.done():
            await asyncio.wait([keeper], timeout=1)
            await self._forget({"lease": told.result()})

    async def _stream(
        self, want: dict[str, Any], granted: "asyncio.Future[Held]", told: "asyncio.Future[str]", outage: _Outage
    ) -> None:
        held, sent, at, url = None, clocks(), self._at, self._urls[self._at]
        try:
            async with request(url, "/v1/hold", want, self._headers({}), self._context) as response:
                if response.status != 200:
                    raise self._refusal(url, response.status, await response.json())
                events = response.events(QUEUED).__aiter__()
                while True:
                    # A lock that is not told to be held any more is lost at its time.
                    event, data = await asyncio.wait_for(events.__anext__(), min(QUEUED, held.remaining) if held else QUEUED)
                    if event == "waiting":
                        outage.answered()
                        if not told.done():
                            told.set_result(data["lease"])
                    elif event == "granted":
                        held = Held(self, want, sent, data)
                        granted.set_result(held)
                    elif event == "held" and held:
                        held._valid = data["valid_ms"] / 1000
                    elif event == "lost" and held:
                        return held._lose(data.get("loss", data["code"]), data.get("why"))
                    elif event == "refused":
                        raise self._refusal(url, data["status"], data)
        except ssl.SSLCertVerificationError as error:
            if not granted.done():
                granted.set_exception(Untrusted(f"{url}: {error.verify_message}; give the authority's file with ca="))
        except FencepostError as error:
            if isinstance(error, Unreachable):
                self._leave(at)
            if not granted.done():
                granted.set_exception(error)
        except (OSError, EOFError, ValueError, LookupError, StopAsyncIteration, asyncio.TimeoutError) as error:
            self._leave(at)
            if not granted.done():
                granted.set_exception(Unreachable(f"{url} does not answer: {error or 'the stream has ended'}"))
        finally:
            if held:
                held._lose("expired")
