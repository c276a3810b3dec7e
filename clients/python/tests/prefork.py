"""Tests a client that is used before Celery forks its workers: they sell a stock exactly, and run a job once.

It needs FENCEPOST, the program. Without the package celery it is skipped. Celery imports this file as the module of its tasks.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
if not importlib.util.find_spec("celery"):
    print("skipped: Celery's workers, because there is no celery")
    sys.exit(77)
sys.path.insert(0, str(HERE.parent))

if __name__ != "__main__":
    from celery import Celery

    import fencepost

    place = pathlib.Path(os.environ["SHOP"])
    app = Celery("shop", broker="filesystem://", backend=f"file://{place}/results")
    folders = {"data_folder_in": f"{place}/queue", "data_folder_out": f"{place}/queue", "control_folder": f"{place}/control"}
    app.conf.broker_transport_options = folders
    locks = fencepost.Client()
    with locks.lock("used before the fork"):
        pass

    @app.task(bind=True, max_retries=None)
    def sell(self, article):
        try:
            with locks.lock(f"stock/{article}", wait=0) as lock:
                pieces = int((place / "pieces").read_text())
                lock.check()
                (place / "pieces").write_text(str(pieces - 1))
                return os.getpid()
        except fencepost.Busy:
            raise self.retry(countdown=0.05)

    @app.task
    @locks.once("nightly-report", "24h")
    def report():
        with (place / "reports").open("a") as file:
            file.write("report ")


def main():
    for folder in ("queue", "control", "results"):
        pathlib.Path(os.environ["SHOP"], folder).mkdir()
    pathlib.Path(os.environ["SHOP"], "pieces").write_text("20")
    import prefork

    options = ["-A", "prefork", "worker", "--pool", "prefork", "--concurrency", "3", "--loglevel", "ERROR"]
    worker = subprocess.Popen([sys.executable, "-m", "celery", *options], cwd=HERE, stdout=subprocess.DEVNULL)
    try:
        sales = [prefork.sell.delay(42) for _ in range(20)]
        reports = [prefork.report.delay() for _ in range(3)]
        workers = {sale.get(timeout=60) for sale in sales}
        for one in reports:
            one.get(timeout=60)
    finally:
        worker.terminate()
        worker.wait()
    left, made = ((prefork.place / name).read_text() for name in ("pieces", "reports"))
    assert (left, made) == ("0", "report "), (left, made)
    assert os.getpid() not in workers and worker.pid not in workers, "the tasks ran in no forked process"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHOP"] = folder
        command = [os.environ["FENCEPOST"], "serve", "-b", f"sqlite:{folder}/locks.db", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            try:
                os.environ["FENCEPOST_URL"] = next(line.split()[-1] for line in service.stdout if line.startswith("the page: "))
                main()
            finally:
                service.kill()
