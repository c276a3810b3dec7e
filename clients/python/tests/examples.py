"""Runs the examples of docs/clients/python.md: each is a program of its own that ends with 0.

It needs FENCEPOST, the program, and for the example with PostgreSQL DATABASE_URL. An example whose package is missing is skipped.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

# What examples import beside the client.
PACKAGES = ["apscheduler", "celery", "psycopg"]
ROOT = pathlib.Path(__file__).resolve().parents[3]


def run(block, url):
    """Returns why it failed."""
    environment = {**os.environ, "FENCEPOST_URL": url, "PYTHONPATH": str(ROOT / "clients/python")}
    try:
        done = subprocess.run([sys.executable, "-c", block], env=environment, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired as late:
        return f"{late}\n{late.stdout}{late.stderr}"
    return done.stdout + done.stderr if done.returncode else None


def main():
    page = (ROOT / "docs/clients/python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
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
                    why = run(block, url)
                finally:
                    service.kill()
        if why:
            failed += 1
            print(f"failed:\n{block}\n{why}")
    print(f"{len(blocks) - failed - skipped} examples passed, {failed} failed, {skipped} were skipped")
    return 1 if failed or len(blocks) < 6 else 0


if __name__ == "__main__":
    sys.exit(main())
