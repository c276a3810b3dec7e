"""Tests what is Python's own: cancellation, interrupts, forks and a clock that jumps. It needs FENCEPOST, the program."""

import asyncio
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import fencepost
from fencepost import aio


def look(url, name):
    with urllib.request.urlopen(f"{url}v1/lock?name={name}", timeout=10) as answer:
        lock = json.load(answer)
    return len(lock["holders"]), len(lock["waiters"])


async def a_task_that_is_cancelled_at_any_moment_leaves_nothing_behind(url):
    locks = aio.Client(url)

    async def work(lock):
        async with lock("cancelled"):
            pass

    for lock in (locks.lock, locks.hold):
        began = time.monotonic()
        await work(lock)
        steps = 60
        pause = 1.5 * (time.monotonic() - began) / steps
        for step in range(steps):
            task = asyncio.create_task(work(lock))
            await asyncio.sleep(step * pause)
            task.cancel()
            await asyncio.wait([task])
            await locks.close()
            # What is left would stay for 30 s, and what is left of a stream for 10 s. A release in the background may take a moment.
            async with locks.lock("cancelled", wait=5):
                pass


async def a_child_of_a_task_releases_nothing(url):
    locks = aio.Client(url)
    async with locks.lock("forked") as held:
        if (child := os.fork()) == 0:
            code = 1
            try:
                await held.release()
                code = 0 if held.loss == "forked" and held.remaining == 0 else 2
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status == 0, status
        assert look(url, "forked") == (1, 0), "the child has released its parent's lock"


async def requests_that_fail_at_once_go_to_the_next_address(url):
    locks = aio.Client("http://127.0.0.1:1", url)
    held = await asyncio.gather(*[locks.lock(f"together {number}", wait=0).acquire() for number in range(4)])
    for one in held:
        await one.release()


async def a_loss_is_told_soon_after_the_machine_was_suspended(url):
    locks, told = aio.Client(url), asyncio.Event()
    held = await locks.lock("suspended", ttl=60).acquire()
    held.on_loss(told.set)
    await asyncio.sleep(0)  # the task that renews begins
    read = time.clock_gettime
    time.clock_gettime = lambda clock: read(clock) + 3600
    try:
        # The next renewal is due after 20 s.
        await asyncio.wait_for(told.wait(), 10)
        assert held.loss == "expired"
    finally:
        time.clock_gettime = read
    with contextlib.suppress(fencepost.Lost):
        await held.release()
    await locks.close()


async def comments_of_a_proxy_are_no_events(url):
    target = urllib.parse.urlsplit(url)

    async def pass_on(reader, writer):
        from_service, to_service = await asyncio.open_connection(target.hostname, target.port)

        async def ask():
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    to_service.write(data)
            to_service.close()

        asking = asyncio.create_task(ask())
        comment = b": ping\n\n"
        with contextlib.suppress(OSError):
            while line := await from_service.readline():
                if line == b"\r\n":  # the end of the head
                    writer.write(line + b"%x\r\n%s\r\n" % (len(comment), comment))
                    break
                writer.write(line)
            while data := await from_service.read(65536):
                writer.write(data)
        writer.close()
        await asking

    proxy = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    locks = aio.Client("http://127.0.0.1:%d" % proxy.sockets[0].getsockname()[1])
    held = await asyncio.wait_for(locks.hold("commented").acquire(), 10)
    await held.release()
    await locks.close()
    proxy.close()


def a_lock_whose_caller_was_interrupted_is_released(url):
    locks = fencepost.Client(url)
    interrupted = [locks.lock("interrupted").acquire, locks.once("interrupted", "1ms").__enter__]
    for ask in interrupted:
        wait = fencepost.concurrent.futures.Future.result

        def interrupt(box, *arguments, wait=wait):
            wait(box, *arguments)
            fencepost.concurrent.futures.Future.result = wait
            raise KeyboardInterrupt

        fencepost.concurrent.futures.Future.result = interrupt
        try:
            ask()
            raise AssertionError("it was not interrupted")
        except KeyboardInterrupt:
            pass
        with locks.lock("interrupted", wait=10, owner="another"):
            pass
    locks.close()


def each_listener_is_told_once_whenever_it_is_added(url):
    locks = fencepost.Client(url)
    for _ in range(20):
        held, told = locks.lock("listened").acquire(), []
        adds = [threading.Thread(target=lambda held=held, told=told: held.on_loss(lambda: told.append(1))) for _ in range(8)]
        for number, add in enumerate(adds):
            add.start()
            if number == 3:
                held._held._lose("expired")
        for add in adds:
            add.join()
        assert told == [1] * 8 and held.wait_lost(10), told
        with contextlib.suppress(fencepost.Lost):
            held.release()
    locks.close()


TESTS = [
    a_task_that_is_cancelled_at_any_moment_leaves_nothing_behind, a_child_of_a_task_releases_nothing,
    requests_that_fail_at_once_go_to_the_next_address, comments_of_a_proxy_are_no_events, a_loss_is_told_soon_after_the_machine_was_suspended,
    a_lock_whose_caller_was_interrupted_is_released, each_listener_is_told_once_whenever_it_is_added,
]

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        command = [os.environ["FENCEPOST"], "serve", "-b", f"sqlite:{folder}/locks.db", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            try:
                url = next(line.split()[-1] for line in service.stdout if line.startswith("the page: "))
                for test in TESTS:
                    if sys.argv[1:] and sys.argv[1] not in test.__name__:
                        continue
                    if asyncio.iscoroutinefunction(test):
                        asyncio.run(asyncio.wait_for(test(url), 60))
                    else:
                        test(url)
                    print(f"{test.__name__}: passed", flush=True)
            finally:
                service.kill()
