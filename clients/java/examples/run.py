#!/usr/bin/env python3
"""Runs the examples of docs/clients/java.md, which are the files of this folder, and those of other pages, which are in `pages`: each is a
program that ends with 0. With `--compile` it compiles them, and runs none.

It needs a JDK and FENCEPOST, the program. The example with PostgreSQL needs DATABASE_URL (postgres://USER@HOST:PORT/NAME) and PGJDBC, the
file of the JDBC driver; without these it is skipped.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CORE = HERE.parent / "core/src/main/java/io/github/fencepost"


def jdbc(url):
    parts = urllib.parse.urlsplit(url)
    query = urllib.parse.urlencode({"user": parts.username or "postgres", "password": parts.password or ""})
    return f"jdbc:postgresql://{parts.hostname}:{parts.port or 5432}{parts.path or '/'}?{query}"


def changed(text, diff):
    """Returns a program of `redisson/` with the change that the page shows: each part of it replaces lines that are there once."""
    for part in diff.split("\n\n"):
        lines = part.splitlines()
        before, after = ("".join(f"{line[1:]}\n" for line in lines if line[0] == sign) for sign in "-+")
        if text.count(before) != 1:
            raise SystemExit(f"these lines of the change are not in the program:\n{before}")
        text = text.replace(before, after)
    return text


def flush_left(text):
    return "".join(f"{line.strip()}\n" for line in text.splitlines())


def run(program, classes, variables):
    """Returns why it failed. The program is a class, or a file as the page starts it."""
    # Each is a machine of its own that lives for a second, so it compiles little.
    machine = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command = [*machine, "-cp", os.pathsep.join([classes, os.environ.get("PGJDBC", "")]), str(program)]
    try:
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired as late:
        return f"{late}\n{late.stdout}{late.stderr}"
    return done.stdout + done.stderr if done.returncode else None


def main():
    if not shutil.which("javac"):
        print("skipped: there is no javac")
        return 77
    page = (ROOT / "docs/clients/java.md").read_text()
    blocks = re.findall(r"^```java\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    files = sorted(HERE.glob("*.java"))
    shown = {path for path in files if path.read_text() in blocks}
    diff = (HERE / "redisson/change.diff").read_text()
    failed, skipped = [f"{path.name} is not on the page as it is" for path in files if path not in shown], 0
    if f"```diff\n{diff}```\n" not in page:
        failed.append("the page does not show redisson/change.diff as it is")
    whole = [block for block in blocks if "public class" in block]
    if len(shown) != len(whole):
        failed.append(f"the page has {len(whole)} examples, and {len(shown)} of them are files")
    # A shorter one is a part of a program.
    parts = "".join(flush_left(path.read_text()) for path in HERE.glob("pages/*.java"))
    failed += [f"this is in no program:\n{block}" for block in blocks if block not in whole and flush_left(block) not in parts]
    with tempfile.TemporaryDirectory() as classes:
        of_redisson = sorted(HERE.glob("redisson/*.java"))
        for path in of_redisson:
            made = pathlib.Path(classes, "made", path.name)
            made.parent.mkdir(exist_ok=True)
            made.write_text(changed(path.read_text(), diff))
            files.append(made)
        files += sorted(HERE.glob("pages/*.java"))
        # All by one compiler, because its start costs more than an example. Without the optimising compiler of the Java machine, it
        # takes half as much of a processor.
        compiler = ["javac", "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC"]
        subprocess.run([*compiler, "-d", classes, *map(str, CORE.glob("*.java")), *map(str, files)], check=True)
        is_run = sys.argv[1:] != ["--compile"]
        for path in files if is_run else []:
            # The page has the command for this file, which compiles it again.
            program = path if path.stem == "CriticalSection" else path.stem
            variables = {}
            if "JDBC_URL" in path.read_text():
                if "DATABASE_URL" not in os.environ or "PGJDBC" not in os.environ:
                    skipped += 1
                    print(f"skipped: {path.name}, because DATABASE_URL or PGJDBC is missing")
                    continue
                variables["JDBC_URL"] = jdbc(os.environ["DATABASE_URL"])
            with tempfile.TemporaryDirectory() as folder:
                command = [os.environ["FENCEPOST"], "serve", "-b", f"sqlite:{folder}/locks.db", "--listen", "127.0.0.1:0"]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
                    try:
                        url = next(line.split()[-1] for line in service.stdout if line.startswith("the page: "))
                        why = run(program, classes, {"FENCEPOST_URL": url, **variables})
                    finally:
                        service.kill()
            if why is not None:
                failed.append(f"{path.name}: {why}")
    done = "ran" if is_run else "were compiled"
    print("\n".join(failed + [f"{len(files) - skipped} examples {done}, {skipped} were skipped, {len(failed)} faults"]))
    return 1 if failed or len(files) < 6 else 0


if __name__ == "__main__":
    sys.exit(main())
