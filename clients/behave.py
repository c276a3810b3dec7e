#!/usr/bin/env python3
"""Runs the cases of behaviour.json with the driver of one client: docs/clients.md describes both.

    FENCEPOST=target/debug/fencepost python3 clients/behave.py python
    FENCEPOST=target/debug/fencepost python3 clients/behave.py go --case renew --say

It exits with 77 if the language is not installed. The driver is the program `driver` in the client's folder: a script that starts it,
and exits with 77 if something that it needs is missing.
"""

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import queue
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 60.0
MISSING = 77
OPERATOR = "operator"


class Failed(Exception):
    """A client does not do what the case says."""


def until(what, ask, limit=LIMIT):
    """Asks again and again until the answer is true. Says what the last answer was otherwise."""
    began = time.monotonic()
    while True:
        is_so, answer = ask()
        if is_so:
            return answer
        if (waited := time.monotonic() - began) > limit:
            raise Failed(f"not within {limit:g} s: {what}; the last look: {answer}")
        # What takes seconds is the end of a lease or an age, and each question costs the service as much as a client's request.
        time.sleep(min(max(waited / 8, 0.02), 0.25))


def seconds(text):
    units = {"ms": 0.001, "s": 1, "m": 60}
    unit = "ms" if text.endswith("ms") else text[-1]
    return float(text[: -len(unit)]) * units[unit]


class Proxy:
    """The network between the driver and a copy of the service."""

    def __init__(self, port):
        self.to, self.state, self.pairs = port, "mend", set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                if self.state == "cut":
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self.to), 5)
                    far.settimeout(None)
                except OSError:
                    near.close()
                    continue
                pair = (near, far)
                self.pairs.add(pair)
                for source, target in (pair, pair[::-1]):
                    threading.Thread(target=self.pump, args=(source, target, pair), daemon=True).start()

    def pump(self, source, target, pair):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.state == "swallow" and source is pair[1]:
                    break  # the request was served, and its answer is lost
                # What is sent while the network is silent is lost, as the connection is when it is mended.
                if self.state != "silence":
                    target.sendall(data)
        self.end(pair)

    def end(self, pair):
        self.pairs.discard(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def set(self, state):
        was, self.state = self.state, "mend" if state == "reset" else state
        if state in ("cut", "reset") or was == "silence":
            for pair in list(self.pairs):
                self.end(pair)

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.set("cut")


class Copy:
    """A copy of the service."""

    def __init__(self, binary, folder, options, engine=None):
        self.command = [binary, "serve", "-b", engine or f"sqlite:{folder}/locks.db", *options]
        self.folder, self.port, self.process = folder, 0, None
        self.start()

    def start(self):
        log = open(f"{self.folder}/service.log", "a")  # noqa: SIM115
        command = [*self.command, "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        for line in self.process.stdout:
            if line.startswith("the page: "):
                self.port = urllib.parse.urlsplit(line.split()[-1]).port
            if line.startswith("try: "):
                return
        raise Failed(f"the service did not start: {pathlib.Path(self.folder, 'service.log').read_text()}")

    def kill(self):
        self.end(signal.SIGKILL)

    def close(self):
        self.end(signal.SIGTERM)

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait()
        self.process.stdout.close()


class Driver:
    """The program of a client that does what it is told."""

    def __init__(self, command, log, say):
        self.say, self.answers, self.events, self.changed = say, {}, [], threading.Condition()
        self.started, self.number, self.sends = {}, 0, threading.Lock()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, encoding="utf-8")
        hello = queue.Queue()
        threading.Thread(target=self.read, args=(hello,), daemon=True).start()
        self.hello = hello.get(timeout=LIMIT)
        self.pid = (self.hello or {}).get("pid", self.process.pid)

    def read(self, hello):
        first = True
        for line in self.process.stdout:
            if self.say:
                print("<", line.rstrip(), flush=True)
            try:
                message = json.loads(line)
            except ValueError:
                message = {"event": "no JSON", "line": line}
            if first:
                hello.put(message)
                first = False
                continue
            with self.changed:
                if "id" in message:
                    self.answers[message["id"]] = message
                else:
                    self.events.append(message)
                self.changed.notify_all()
        if first:
            hello.put(None)
        with self.changed:
            self.answers = None
            self.changed.notify_all()

    def send(self, command):
        with self.sends:
            self.number += 1
            number = self.number
            line = json.dumps({"id": number, **command}, ensure_ascii=False)
            if self.say:
                print(">", line, flush=True)
            try:
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
            except (OSError, ValueError):
                raise Failed("the driver has ended") from None
        return number

    def wait(self, what, take, limit=LIMIT):
        with self.changed:
            end = time.monotonic() + limit
            while True:
                if self.answers is None:
                    raise Failed(f"the driver has ended before {what}")
                found = take()
                if found is not None:
                    return found
                if not self.changed.wait(end - time.monotonic()):
                    raise Failed(f"not within {limit:g} s: {what}; events: {self.events}")

    def answer(self, number, what, limit=LIMIT):
        return self.wait(f"the answer to {what}", lambda: self.answers.pop(number, None), limit)

    def event(self, wanted):
        def take():
            for event in self.events:
                if all(event.get(field) == value for field, value in wanted.items()):
                    self.events.remove(event)
                    return event
            return None

        return self.wait(f"the event {wanted}", take)

    def end(self):
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGCONT)
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failed("the driver did not end with its standard input") from None
        if code != 0:
            raise Failed(f"the driver ended with exit code {code}")


def differs(wanted, found):
    """Says where `found` is not as `wanted`. Only the fields of `wanted` have to be there."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for field, value in wanted.items():
            if (why := differs(value, found.get(field))) is not None:
                return f"{field}: {why}"
        return None
    return None if wanted == found else f"{found!r} instead of {wanted!r}"


class Case:
    def __init__(self, case, args, command):
        self.case, self.args, self.command = case, args, command
        self.held, self.tokens, self.took = {}, {}, {}

    def run(self):
        """Returns why it was skipped, or None."""
        with tempfile.TemporaryDirectory(prefix="fencepost-client-") as folder, contextlib.ExitStack() as stack:
            self.folder = pathlib.Path(folder)
            log = stack.enter_context(open(self.folder / "driver.log", "w"))
            try:
                driver = self.driver = Driver(self.command, log, self.args.say)
                stack.callback(lambda: driver.process.poll() is None and (driver.process.kill(), driver.process.wait()))
                if driver.hello is None:
                    raise Failed("the driver did not say hello")
                lacks = [need for need in self.case.get("needs", []) if need not in driver.hello["can"]]
                if lacks:
                    driver.end()
                    return f"the client has no {', '.join(lacks)}"
                self.set_up(stack)
                for number, step in enumerate(self.case["steps"], 1):
                    try:
                        self.step(dict(step))
                    except Failed as failed:
                        raise Failed(f"step {number}, {json.dumps(step, ensure_ascii=False)}: {failed}") from None
                driver.end()
            except Failed as failed:
                texts = [path.read_text() for path in (self.folder / "driver.log", self.folder / "service.log") if path.exists()]
                raise Failed(f"{failed}\n" + "".join(texts)) from None
        return None

    def set_up(self, stack):
        service, options, scheme = self.case.get("service", {}), [], "http"
        self.file, self.tokens_file, self.access = self.folder / "token", self.folder / "tokens.jsonl", None
        client = {}
        if service.get("tokens"):
            self.access = self.add(OPERATOR, "acquire,read,evict:")
            self.file.write_text(self.add("client", "acquire,read:job", "acquire,read:second"))
            options += ["--tokens", self.tokens_file, "--audit", self.folder / "audit"]
            client["token_file"] = str(self.file)
        if service.get("tls"):
            key, cert = self.folder / "key.pem", self.folder / "cert.pem"
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                 "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext",
                 "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", cert], check=True, capture_output=True)
            options += ["--cert", cert, "--key", key]
            client["ca"], scheme = str(cert), "https"
        self.copies = []
        for _ in range(service.get("copies", 1)):
            copy = Copy(self.args.binary, self.folder, options)
            stack.callback(copy.kill)
            self.copies.append(copy)
        self.proxy = Proxy(self.copies[0].port)
        stack.callback(self.proxy.close)
        self.words = {"$url": f"{scheme}://127.0.0.1:{self.proxy.port}", "$url2": f"{scheme}://127.0.0.1:{self.copies[-1].port}",
                      "$ca": client.get("ca"), "$host": socket.gethostname(), "$pid": self.driver.pid}
        self.do({"do": "open", "as": "client", "urls": ["$url"], **client, "expect": {"ok": {}}})

    def add(self, name, *rights):
        allow = [word for right in rights for word in ("--allow", right)]
        command = [self.args.binary, "serve", "token", "add", "--tokens", self.tokens_file, *allow, name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def filled(self, value):
        if isinstance(value, str):
            return self.words.get(value, value)
        if isinstance(value, list):
            return [self.filled(one) for one in value]
        if isinstance(value, dict):
            return {field: self.filled(one) for field, one in value.items()}
        return value

    def step(self, step):
        step = self.filled(step)
        kind = next(iter(step))
        getattr(self, kind)(step)

    # What the driver does.

    def send(self, step, verb):
        command = {field: value for field, value in step.items() if field not in ("expect", verb)}
        command = {"do": step[verb], **command}
        if step[verb] in ("lock", "once", "check_job", "run", "elect"):
            command.setdefault("client", "client")
        return self.driver.send(command)

    def check(self, step, answer):
        if "expect" in step and (why := differs(step["expect"], answer)):
            raise Failed(f"{why} in the answer {json.dumps(answer, ensure_ascii=False)}")
        if step.get("do", step.get("of")) == "lock" and "ok" in answer:
            self.granted(step["name"], answer["ok"]["token"], "owner" in step)

    def granted(self, name, token, again=False):
        last = self.tokens.get(name, 0)
        if token < last or (token == last and not again):
            raise Failed(f"the token {token} of {name} does not grow beyond {last}")
        self.tokens[name] = token

    def do(self, step):
        step = self.filled(step)
        self.check(step, self.driver.answer(self.send(step, "do"), step["do"]))

    def start(self, step):
        self.driver.started[step["as"]] = (self.send(step, "start"), step)

    def finish(self, step):
        number, started = self.driver.started.pop(step["finish"])
        answer = self.driver.answer(number, started["start"])
        self.check({"of": started["start"], "name": started.get("name"), "expect": step.get("expect", {})}, answer)

    def event(self, step):
        wanted = {"event": step["event"], **{field: step[field] for field in ("lock", "candidate") if field in step}}
        event = self.driver.event(wanted)
        if why := differs(step.get("expect", {}), event):
            raise Failed(f"{why} in {event}")

    def client(self, step):
        os.kill(self.driver.pid, {"stop": signal.SIGSTOP, "continue": signal.SIGCONT}[step["client"]])

    # What others do.

    def ask(self, method, path, body=None, limit=LIMIT):
        """Asks a copy of the service that runs, past the network of the driver."""
        copy = next(copy for copy in self.copies if copy.process.poll() is None)
        headers = {"Content-Type": "application/json"}
        if self.access:
            headers["Authorization"] = f"Bearer {self.access}"
        if self.words["$ca"]:
            context = ssl.create_default_context(cafile=self.words["$ca"])
            connection = http.client.HTTPSConnection("127.0.0.1", copy.port, timeout=limit, context=context)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", copy.port, timeout=limit)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read() or "null")

    def done(self, *request, **options):
        status, answer = self.ask(*request, **options)
        if status not in (200, 204):
            raise Failed(f"the service answers {status}: {answer}")
        return answer

    def look(self, name):
        return self.done("GET", "/v1/lock?" + urllib.parse.urlencode({"name": name}, quote_via=urllib.parse.quote))

    def see(self, step):
        def claims(wanted, found):
            if isinstance(wanted, int):
                return len(found) == wanted
            return len(found) == len(wanted) and all(differs(one, two) is None for one, two in zip(wanted, found))

        def is_so():
            lock = self.look(step["see"]["name"])
            wanted, runs = step["see"], lock.get("runs") or {}
            holders, waiters = lock["holders"], lock["waiters"]
            if "held_for" in wanted and not holders:
                raise Failed(f"nobody holds the lock: {lock}")
            return (claims(wanted.get("holders", len(holders)), holders)
                    and claims(wanted.get("waiters", len(waiters)), waiters)
                    and ("held_for" not in wanted or any(one["age_ms"] >= 1000 * seconds(wanted["held_for"]) for one in holders))
                    and ("waiting_for" not in wanted or any(one["age_ms"] >= 1000 * seconds(wanted["waiting_for"]) for one in waiters))
                    and all(differs(wanted[run], runs.get(run)) is None for run in ("last", "good") if run in wanted)), lock

        limit = 0 if step["see"].get("at_once") else seconds(step["see"].get("within", f"{LIMIT}s"))
        until("the service shows that", is_so, limit)

    def taken(self, step, name):
        body = {"name": name, "ttl": "2m", "holder": step.get("holder", "another"), **({"wait": step["wait"]} if "wait" in step else {})}
        granted = self.done("POST", "/v1/acquire", body, limit=130)
        self.granted(name, granted["token"])
        return granted["lease"]

    def take(self, step):
        self.took[step["as"]] = self.taken(step, step["take"])

    def start_take(self, step):
        pool = concurrent.futures.ThreadPoolExecutor(1)
        self.held[step["as"]] = pool.submit(self.taken, step, step["start_take"])
        pool.shutdown(wait=False)

    def finish_take(self, step):
        try:
            self.took[step["finish_take"]] = self.held.pop(step["finish_take"]).result(LIMIT)
        except concurrent.futures.TimeoutError:
            raise Failed("the other caller was not granted the lock") from None

    def give(self, step):
        self.done("POST", "/v1/leases/release", {"lease": self.took.pop(step["give"])})

    def evict(self, step):
        holders = self.look(step["evict"])["holders"]
        if not holders:
            raise Failed("nobody holds the lock")
        holder = holders[0]
        self.done("POST", "/v1/evict", {"name": step["evict"], "token": holder["token"], "reason": step["reason"]})

    def service(self, step):
        getattr(self.copies[step["copy"] - 1], step["service"])()

    def network(self, step):
        self.proxy.set(step["network"])

    def token(self, step):
        if step["token"] == "replace":
            self.file.write_text(self.add("next", "acquire,read:job", "acquire,read:second"))
        remove = [self.args.binary, "serve", "token", "remove", "--tokens", self.tokens_file, "client"]
        subprocess.run(remove, check=True, capture_output=True)


def tried(case, args, command):
    """Runs a case until it passes, as often as it says. Returns why it was skipped, or None."""
    for _ in range(case.get("tries", 1) - 1):
        try:
            return Case(case, args, command).run()
        except Failed as failed:
            print(f"{args.client}: {case['case']}: begins anew, because of {failed}", flush=True)
    return Case(case, args, command).run()


def folder_of(client):
    """`python asyncio` is the client python with an argument for its driver."""
    name, *arguments = client.split()
    return HERE / name, arguments


def built(client):
    """Returns the command of a driver, after it has built what has to be built. Without its language it ends this program."""
    folder, arguments = folder_of(client)
    command = [str(folder / "driver"), *arguments]
    if not os.access(command[0], os.X_OK):
        print(f"{client}: there is no client yet")
        sys.exit(MISSING)
    # What `python3` is may be a script that looks for one, which takes longer than the start of a driver.
    os.environ.setdefault("FENCEPOST_PYTHON", sys.executable)
    ready = subprocess.run([*command, "--check"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ready.returncode != 0:
        print(f"{client}: {ready.stdout}{ready.stderr}".strip())
        sys.exit(ready.returncode)
    return command


def binary(parser):
    """Returns the path of the program fencepost."""
    found = os.environ.get("FENCEPOST") or shutil.which("fencepost")
    if not found:
        parser.error("set FENCEPOST to the program fencepost")
    return os.path.abspath(found)


def main():
    parser = argparse.ArgumentParser(description="Runs the cases of behaviour.json with the driver of a client.")
    parser.add_argument("client", help="folder of the client, and arguments of its driver, as in \"python asyncio\"")
    parser.add_argument("--case", help="run the cases whose name contains this")
    parser.add_argument("--say", action="store_true", help="print what is sent and answered")
    parser.add_argument("--jobs", type=int, default=4, help="cases that run at a time")
    args = parser.parse_args()
    args.binary = binary(parser)
    command = built(args.client)
    cases = json.loads((HERE / "behaviour.json").read_text())["cases"]
    cases = [case for case in cases if args.case is None or args.case in case["case"]]
    passed = failed = skipped = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        began = {pool.submit(tried, case, args, command): case["case"] for case in cases}
        for work in concurrent.futures.as_completed(began):
            name = began[work]
            try:
                why = work.result()
            except Failed as error:
                failed += 1
                print(f"{args.client}: {name}: FAILED: {error}", flush=True)
                continue
            passed, skipped = passed + (why is None), skipped + (why is not None)
            print(f"{args.client}: {name}: {'passed' if why is None else 'skipped, because ' + why}", flush=True)
    print(f"{args.client}: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
