"""Does what the cases of behaviour.json say: docs/clients.md describes the commands."""

import asyncio
import json
import os
import sys
import threading
import time

import fencepost
from fencepost import aio

USES_ASYNCIO = "asyncio" in sys.argv
out = threading.Lock()
clients, locks, waits, candidates = {}, {}, {}, {}


class BodyFailed(Exception):
    pass


def tell(message):
    with out:
        print(json.dumps(message), flush=True)


def seconds(text):
    if text in (None, "forever"):
        return 0 if text is None else None
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def state(held):
    if held.held:
        return {"held": True, "token": held.token}
    return {"held": False, "loss": held.loss, **({"why": held.why} if held.why else {})}


def lock_of(command):
    client, name, options = clients[command["client"]], command["name"], {}
    for option in ("holder", "owner", "reason"):
        if option in command:
            options[option] = command[option]
    if "ttl" in command:
        options["ttl"] = seconds(command["ttl"])
    options["wait"] = seconds(command.get("wait"))
    if command.get("via") == "hold":
        return client.hold(name, **options)
    if "permits" in command:
        return client.permits(name, command["permits"], take=command.get("take", 1), **options)
    return client.read(name, **options) if command.get("mode") == "shared" else client.lock(name, **options)


def granted(command, held):
    name = command["as"]
    locks[name] = held

    def lost():
        tell({"event": "lost", "lock": name, **state(held)})

    held.on_loss(lost)
    return {"held": True, "token": held.token}


def error_of(error):
    kinds = [
        (BodyFailed, "body"), (fencepost.Lost, "lost"), (fencepost.WaitTimeout, "timeout"), (fencepost.Busy, "busy"),
        (fencepost.Denied, "denied"), (fencepost.Unreachable, "unreachable"), (fencepost.Untrusted, "certificate"),
        (fencepost.Invalid, "invalid"), (fencepost.Cancelled, "cancelled"), (asyncio.CancelledError, "cancelled"),
    ]
    kind = next((kind for type_, kind in kinds if isinstance(error, type_)), "unsupported")
    answer = {"error": kind, "message": f"{type(error).__name__}: {error}"}
    if isinstance(error, fencepost.Lost):
        answer.update(loss=error.loss, why=error.why)
    if isinstance(error, fencepost.Busy) and error.holders:
        answer["holder"] = error.holders[0]["holder"]
    if isinstance(getattr(error, "lost", None), fencepost.Lost):
        answer["attached"] = "lost"
    return answer


def open_(command):
    make = aio.Client if USES_ASYNCIO else fencepost.Client
    clients[command["as"]] = make(*command["urls"], token_file=command.get("token_file"), ca=command.get("ca"))
    return {}


def fork(command):
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, json.dumps(state(locks[command["lock"]])).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        said = json.load(answer)
    os.waitpid(child, 0)
    return said


class Sync:
    def lock(self, command):
        lock = waits[command["as"]] = lock_of(command)
        return granted(command, lock.acquire())

    def check(self, command):
        return state(locks[command["lock"]])

    def release(self, command):
        locks[command["lock"]].release()
        return {}

    def cancel(self, command):
        waits[command["request"]].cancel()
        return {}

    def run(self, command):
        with lock_of({**command, "wait": "forever"}) as held:
            held.wait_lost()
            if command["body"] == "fail-after-loss":
                raise BodyFailed("the body fails")
        return {}

    def once(self, command):
        with clients[command["client"]].once(command["name"], command["window"], retry=command.get("retry", False)) as run:
            if run.first and command["body"] == "fail":
                raise BodyFailed("the body fails")
        return {"ran": True} if run.first else {"ran": False, "exit_code": run.run["exit_code"]}

    def check_job(self, command):
        client = clients[command["client"]]
        return client.check(command["name"], max_age=command.get("max_age"), max_held=command.get("max_held"))

    def elect(self, command):
        name = command["as"]

        def lead(held):
            tell({"event": "leads", "candidate": name})
            held.wait_lost()
            tell({"event": "follows", "candidate": name})

        candidates[name] = clients[command["client"]].elect(command["name"], lead, ttl=seconds(command["ttl"]))
        return {}

    def resign(self, command):
        candidates.pop(command["candidate"]).stop()
        return {}

    def open(self, command):
        return open_(command)

    def fork(self, command):
        return fork(command)


class Async:
    async def lock(self, command):
        waits[command["as"]] = asyncio.current_task()
        return granted(command, await lock_of(command).acquire())

    async def check(self, command):
        return state(locks[command["lock"]])

    async def release(self, command):
        await locks[command["lock"]].release()
        return {}

    async def cancel(self, command):
        waits[command["request"]].cancel()
        return {}

    async def run(self, command):
        async with lock_of({**command, "wait": "forever"}):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if command["body"] == "fail-after-loss":
                    raise BodyFailed("the body fails") from None
        return {}

    async def once(self, command):
        async with clients[command["client"]].once(command["name"], command["window"], retry=command.get("retry", False)) as run:
            if run.first and command["body"] == "fail":
                raise BodyFailed("the body fails")
        return {"ran": True} if run.first else {"ran": False, "exit_code": run.run["exit_code"]}

    async def check_job(self, command):
        client = clients[command["client"]]
        return await client.check(command["name"], max_age=command.get("max_age"), max_held=command.get("max_held"))

    async def elect(self, command):
        name = command["as"]

        async def lead(_):
            tell({"event": "leads", "candidate": name})
            try:
                await asyncio.Event().wait()
            finally:
                tell({"event": "follows", "candidate": name})

        elected = clients[command["client"]].elect(command["name"], lead, ttl=seconds(command["ttl"]))
        candidates[name] = asyncio.create_task(elected)
        return {}

    async def resign(self, command):
        candidate = candidates.pop(command["candidate"])
        candidate.cancel()
        await asyncio.wait([candidate])
        return {}

    async def block(self, command):
        time.sleep(seconds(command["for"]))  # noqa: ASYNC251
        return state(locks[command["check"]])

    async def open(self, command):
        return open_(command)

    async def fork(self, command):
        return fork(command)


def main():
    def work(command):
        try:
            tell({"id": command["id"], "ok": getattr(Sync(), command["do"])(command)})
        except BaseException as error:
            tell({"id": command["id"], **error_of(error)})

    for line in sys.stdin:
        threading.Thread(target=work, args=(json.loads(line),), daemon=True).start()
    os._exit(0)


async def main_asyncio():
    loop, tasks = asyncio.get_running_loop(), set()

    async def work(command):
        try:
            tell({"id": command["id"], "ok": await getattr(Async(), command["do"])(command)})
        except BaseException as error:
            tell({"id": command["id"], **error_of(error)})

    def begin(line):
        task = asyncio.ensure_future(work(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read():
        for line in sys.stdin:
            loop.call_soon_threadsafe(begin, line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    optional = ["fork", "reentrant"] + (["event-loop"] if USES_ASYNCIO else [])
    tell({"client": "python", "pid": os.getpid(), "can": optional})
    if USES_ASYNCIO:
        asyncio.run(main_asyncio())
    else:
        main()
