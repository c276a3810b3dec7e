"""Tests that a leader whose work fails is a candidate again, and that the failure is logged. It needs FENCEPOST, the program."""

import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import fencepost


class Log(logging.Handler):
    def __init__(self):
        super().__init__()
        self.said = []

    def emit(self, record):
        self.said.append((record.getMessage(), record.exc_info[0]))


def main(url):
    log = Log()
    logging.getLogger("fencepost").addHandler(log)
    tokens, leads_again = [], threading.Event()

    def lead(lock):
        tokens.append(lock.token)
        if len(tokens) == 1:
            raise RuntimeError("the work failed")
        leads_again.set()
        lock.wait_lost()

    with fencepost.Client(url) as locks:
        elector = locks.elect("reminders", lead)
        assert leads_again.wait(30), "it does not lead again"
        elector.stop()
        with locks.lock("reminders", wait=0) as lock:
            tokens.append(lock.token)
    assert tokens == sorted(tokens) and len(tokens) == 3, tokens
    assert log.said == [("the candidate for reminders failed, and tries again", RuntimeError)], log.said


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        command = [os.environ["FENCEPOST"], "serve", "-b", f"sqlite:{folder}/locks.db", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            try:
                main(next(line.split()[-1] for line in service.stdout if line.startswith("the page: ")))
            finally:
                service.kill()
