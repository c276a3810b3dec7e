"""Runs the examples of docs/clients/python.md, each of which is a program of its own that ends with 0, and that of docs/leader.md. Then it runs
the tests beside it, which are programs of the same kind.

It needs FENCEPOST, the program, and for the example with PostgreSQL DATABASE_URL. An example whose package is missing is skipped.
"""

import importlib.util
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading

# What examples import beside the client.
PACKAGES = ["apscheduler", "celery", "psycopg"]
# The exit code of a test whose package is missing.
MISSING = 77
ROOT = pathlib.Path(__file__).resolve().parents[3]


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def variables(url):
    return {**os.environ, "FENCEPOST_URL": url, "PYTHONPATH": str(ROOT / "clients/python")}


def run(block, url):
    """Returns why it failed."""
    environment = variables(url)
    try:
        done = subprocess.run([sys.executable, "-c", block], env=environment, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired as late:
        return f"{late}\n{late.stdout}{late.stderr}"
    return done.stdout + done.stderr if done.returncode else None


def succeeds(block, url):
    """Lets the leader of two processes stand down, so that the other one leads. Returns why that failed."""
    command = [sys.executable, "-c", block]
    programs = [subprocess.Popen(command, env=variables(url), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    watch = threading.Timer(120, lambda: [program.kill() for program in programs])
    watch.start()
    try:
        # One of them is silent, because it is no leader.
        ready, _, _ = select.select([program.stdout for program in programs], [], [], 120)
        programs.sort(key=lambda program: program.stdout not in ready)
        for program in programs:
            first = program.stdout.readline()
            program.send_signal(signal.SIGTERM)
            rest, code = program.stdout.read(), program.wait()
            if not first.startswith("leader, term ") or rest != "follower\n" or code != 0:
                return f"a leader said {first!r} and {rest!r}, and ended with {code}"
        return None
    finally:
        watch.cancel()
        for program in programs:
            program.kill()


def main():
    blocks = blocks_of("docs/clients/python.md")
    leaders = blocks_of("docs/leader.md")
    blocks += leaders
    failed = skipped = 0
    for block in blocks:
        missing = [package for package in PACKAGES if f"import {package}" in block or f"from {package}" in block]
        missing = [package for package in missing if not importlib.util.find_spec(package)]
        if "DATABASE_URL" in block and "DATABASE_URL" not in os.environ:
            missing.append("DATABASE_URL")
        if missing:
            skipped += 1
            print(f"skipped: an example of the page for Python, because there is no {missing[0]}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = [os.environ["FENCEPOST"], "serve", "-b", f"sqlite:{folder}/locks.db", "--listen", "127.0.0.1:0"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
                try:
                    url = next(line.split()[-1] for line in service.stdout if line.startswith("the page: "))
                    why = succeeds(block, url) if block in leaders else run(block, url)
                finally:
                    service.kill()
        if why:
            failed += 1
            print(f"failed:\n{block}\n{why}")
    for test in ("attacks.py", "elector.py", "prefork.py"):
        done = subprocess.run([sys.executable, pathlib.Path(__file__).parent / test], capture_output=True, text=True, timeout=120)
        if done.returncode == MISSING:
            print(done.stdout)
        elif done.returncode != 0:
            failed += 1
            print(f"failed: {test}\n{done.stdout}{done.stderr}")
    print(f"{len(blocks)} examples, {failed} failures, {skipped} were skipped")
    return 1 if failed or len(leaders) != 1 or len(blocks) < 7 else 0


if __name__ == "__main__":
    sys.exit(main())
