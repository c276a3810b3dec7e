#!/usr/bin/env python3
"""All clients at once on the same locks, through three copies of the service, while copies and clients are killed.

    FENCEPOST=target/debug/fencepost clients/soak.py redis --cycles 2000
    FENCEPOST=target/debug/fencepost clients/soak.py postgres --cycles 50000 --kills 100
    FENCEPOST=target/debug/fencepost clients/soak.py sqlite --pauses 200

A cycle takes a lock, asks its client whether it holds it, and releases it. Each time that a lock is granted, the client that had it before
is asked again, unless it has released it: it must know that the lock is lost. With --pauses the process of each client is stopped until
its leases have expired, and must say so at its first look. The last line is a JSON object with the number of findings.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import glob
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from behave import Copy, Driver, Failed, binary, built, until

CLIENTS = ["go", "java", "node", "python"]
LOCKS, WORKERS = 8, 4
TTL = "3s"
# A lock is granted within this time. A copy that is killed keeps the places of its waiters for 10 s, and a dead client its own for 5 s.
GRANTED = 180.0


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def redis(folder, stack):
    port = free_port()
    command = ["redis-server", "--port", str(port), "--dir", folder, "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
    start(command, stack)

    def answers():
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True, None
        return False, "no connection"

    until("Redis answers", answers)
    return f"redis://127.0.0.1:{port}"


def postgres(folder, stack):
    programs, port = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1], free_port()
    user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    data = tempfile.mkdtemp(prefix="fencepost-soak-")
    stack.callback(shutil.rmtree, data, ignore_errors=True)
    if user:
        shutil.chown(data, "postgres", "postgres")
    subprocess.run([f"{programs}/initdb", "-A", "trust", "-U", "postgres", "-D", data], check=True, capture_output=True, cwd="/", **user)
    options = ["-p", str(port), "-k", data, "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"]
    start([f"{programs}/postgres", "-D", data, *options], stack, cwd="/", **user)
    ready = [f"{programs}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    until("PostgreSQL answers", lambda: (subprocess.run(ready).returncode == 0, None))
    return f"postgres://postgres@127.0.0.1:{port}/postgres?mode=table"


def sqlite(folder, stack):
    return f"sqlite:{folder}/locks.db"


def start(command, stack, **options):
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    stack.callback(server.wait)
    stack.callback(server.terminate)


class Client:
    """The driver of one client, which may be killed and started again."""

    def __init__(self, soak, name, command, number):
        self.soak, self.name, self.command = soak, name, command
        # Each client prefers another copy.
        self.urls = soak.urls[number % 3 :] + soak.urls[: number % 3]
        self.lives, self.guard = 0, threading.Lock()
        self.begin()

    def begin(self):
        driver = Driver(self.command, self.soak.log, False)
        if not driver.hello:
            raise Failed(f"the driver of {self.name} did not start")
        driver.answer(driver.send({"do": "open", "as": "client", "urls": self.urls}), "open")
        self.lives += 1
        self.driver = driver

    def kill(self):
        os.kill(self.driver.pid, 9)
        self.driver.process.kill()
        self.driver.process.wait()
        self.begin()


class Grip:
    """A lock that a client was granted, as far as this program knows."""

    def __init__(self, client, driver, lock, token):
        self.client, self.driver, self.lock, self.token = client, driver, lock, token

    def check(self):
        """Asks the client. A client that was killed holds nothing."""
        try:
            answer = self.driver.answer(self.driver.send({"do": "check", "lock": self.lock}), "check")
        except Failed as failed:
            if self.driver.answers is None or "has ended" in str(failed):
                return False
            raise
        return answer["ok"]["held"]


class Soak:
    def __init__(self, args, engine, folder, stack):
        self.args, self.guard, self.findings = args, threading.Lock(), []
        self.log = stack.enter_context(open(f"{folder}/clients.log", "w"))
        self.copies = []
        for number in range(3):
            place = pathlib.Path(folder, f"copy-{number}")
            place.mkdir()
            copy = Copy(args.binary, place, [], engine)
            stack.callback(copy.kill)
            self.copies.append(copy)
        self.urls = [f"http://127.0.0.1:{copy.port}" for copy in self.copies]
        self.clients = [Client(self, name, built(name), number) for number, name in enumerate(args.clients)]
        stack.callback(lambda: [client.driver.process.kill() for client in self.clients])
        # Of each lock: who was granted it last and has not released it, and the greatest token.
        self.grips, self.tokens = {}, collections.defaultdict(int)
        self.left = {client.name: args.cycles for client in self.clients}
        self.outcomes = collections.Counter()

    def find(self, text):
        with self.guard:
            self.findings.append(text)
        print("finding:", text, flush=True)

    def granted(self, name, grip):
        """Notes a grant. Whoever had the lock before and has not released it must not believe in it any more."""
        with self.guard:
            before, last = self.grips.get(name), self.tokens[name]
            is_late = grip.token < last
            if not is_late:
                self.grips[name], self.tokens[name] = grip, grip.token
        if grip.token == last:
            self.find(f"{name} was granted twice with the token {last}")
        # An answer may come late, after a later holder's: then this grant has ended.
        doubted = grip if is_late else before
        if doubted and doubted.check():
            self.find(f"{doubted.client.name} still holds {name} with the token {doubted.token}, and {max(last, grip.token)} was granted")

    def cycle(self, client, worker, number, name):
        driver, lock = client.driver, f"{worker}-{number}"
        ask = {"do": "lock", "client": "client", "as": lock, "name": name, "ttl": TTL, "wait": "forever"}
        answer = driver.answer(driver.send(ask), f"the request for {name}", GRANTED)
        if "ok" not in answer:
            self.outcomes[answer["error"]] += 1
            return
        grip = Grip(client, driver, lock, answer["ok"]["token"])
        self.granted(name, grip)
        grip.check()
        with self.guard:
            if self.grips.get(name) is grip:
                del self.grips[name]
        answer = driver.answer(driver.send({"do": "release", "lock": lock}), "release")
        self.outcomes["released" if "ok" in answer else answer["error"]] += 1

    def work(self, client, worker):
        choose, number = random.Random(f"{client.name} {worker}"), 0
        while True:
            with self.guard:
                if self.left[client.name] <= 0 or self.findings:
                    return
                self.left[client.name] -= 1
            number += 1
            life = client.lives
            try:
                self.cycle(client, f"{worker}-{life}", number, f"soak-{choose.randrange(LOCKS)}")
            except Failed as failed:
                if "has ended" not in str(failed):
                    return self.find(f"{client.name}: {failed}; the locks: {self.is_empty()[1]}")
                # It was killed, and its place is taken by another.
                self.outcomes["killed"] += 1
                until("the client is started again", lambda life=life: (client.lives > life, client.lives))

    def disturb_or_say(self, *arguments):
        try:
            self.disturb(*arguments)
        except Exception as error:
            self.find(f"what kills has failed: {error!r}")

    def disturb(self, all_cycles, ended):
        """Kills, stops and continues copies and clients at random times: each after another part of the cycles."""
        choose = random.Random(self.args.seed)
        for kill in range(self.args.kills):
            due = all_cycles * (1 - (kill + 1) / (self.args.kills + 1))
            while not ended.wait(0.05):
                if sum(self.left.values()) <= due:
                    break
            if ended.is_set():
                return
            victim = choose.choice(self.copies + self.clients)
            if isinstance(victim, Copy):
                victim.kill()
                ended.wait(choose.uniform(0, 1))
                victim.start()
                self.outcomes["copies killed"] += 1
            else:
                victim.kill()
                self.outcomes["clients killed"] += 1

    def run(self):
        began, ended = time.monotonic(), threading.Event()
        disturbing = threading.Thread(target=self.disturb_or_say, args=(sum(self.left.values()), ended))
        disturbing.start()
        with concurrent.futures.ThreadPoolExecutor(WORKERS * len(self.clients)) as pool:
            work = [pool.submit(self.work, client, worker) for client in self.clients for worker in range(WORKERS)]
            for one in concurrent.futures.as_completed(work):
                one.result()
        ended.set()
        disturbing.join()
        took = time.monotonic() - began
        for client in self.clients:
            client.driver.end()
        try:
            until("nothing is left", self.is_empty)
        except Failed as failed:
            self.find(str(failed))
        return took

    def is_empty(self):
        with urllib.request.urlopen(f"{self.urls[0]}/v1/locks", timeout=10) as answer:
            locks = json.load(answer)["locks"]
        return not locks, locks

    def pause(self, client, rounds, together):
        """Stops a client until its leases have expired. Returns how often it said so at its first look."""
        told, driver = 0, client.driver
        for number in range(rounds):
            names = [f"pause-{client.name}-{number}-{lock}" for lock in range(together)]
            for name in names:
                answer = driver.answer(driver.send({"do": "lock", "client": "client", "as": name, "name": name, "ttl": "2s"}), "lock")
                if "ok" not in answer:
                    raise Failed(f"{client.name}: {answer}")
            os.kill(driver.pid, 19)

            def expired(names=names):
                with urllib.request.urlopen(f"{self.urls[0]}/v1/locks?prefix=pause-{client.name}-", timeout=10) as answer:
                    held = [lock["name"] for lock in json.load(answer)["locks"]]
                return not set(held) & set(names), held

            until("the leases have expired", expired)
            # The first that it reads when it goes on.
            looks = [driver.send({"do": "check", "lock": name}) for name in names]
            os.kill(driver.pid, 18)
            for look in looks:
                answer = driver.answer(look, "check")
                if answer["ok"]["held"] is False and answer["ok"].get("loss") == "expired":
                    told += 1
                else:
                    self.find(f"{client.name}: {answer}")
        return told

    def pauses(self):
        together = 20
        with concurrent.futures.ThreadPoolExecutor(len(self.clients)) as pool:
            rounds = -(-self.args.pauses // together)
            work = {client.name: pool.submit(self.pause, client, rounds, together) for client in self.clients}
            return {name: told.result() for name, told in work.items()}


def main():
    parser = argparse.ArgumentParser(description="All clients at once on the same locks.")
    parser.add_argument("engine", choices=["redis", "postgres", "sqlite"])
    parser.add_argument("--cycles", type=int, default=2000, help="of each client")
    parser.add_argument("--kills", type=int, default=100, help="of copies and clients")
    parser.add_argument("--pauses", type=int, default=0, help="of each client, instead of cycles")
    parser.add_argument("--clients", nargs="+", default=CLIENTS)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    args.binary = binary(parser)
    with tempfile.TemporaryDirectory(prefix="fencepost-soak-") as folder, contextlib.ExitStack() as stack:
        engine = globals()[args.engine](folder, stack)
        if args.engine == "postgres":
            subprocess.run([args.binary, "schema", "--apply", "-b", engine], check=True, stdout=subprocess.DEVNULL)
        soak = Soak(args, engine, folder, stack)
        if args.pauses:
            told = soak.pauses()
            note = ", ".join(f"{name}: {count} of {args.pauses}" for name, count in sorted(told.items()))
        else:
            took = soak.run()
            outcomes = ", ".join(f"{count} {what}" for what, count in sorted(soak.outcomes.items()))
            note = f"{args.cycles:,} cycles of each of {', '.join(args.clients)} in {took:.0f} s, seed {args.seed}: {outcomes}"
        print(json.dumps({"figure": len(soak.findings), "note": note}))
    return 1 if soak.findings else 0


if __name__ == "__main__":
    sys.exit(main())
