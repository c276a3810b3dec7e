"""kazoo on the measuring line: see ../README.md for the words it is spoken to with."""

import sys
import threading
import time

from kazoo.client import KazooClient


def main():
    word, url = sys.argv[1:3]
    client = KazooClient(hosts=url.removeprefix("zookeeper://"), timeout=30.0)
    client.start(timeout=30)
    if word == "cycle":
        cycle(client, int(sys.argv[3]))
    else:
        drain(client, "/" + sys.argv[3])


def cycle(client, count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        lock = client.Lock("/uncontended")
        lock.acquire()
        lock.release()
        times.append((time.perf_counter() - start) * 1e6)
    times.sort()
    say('{"p50":%f}' % times[count // 2])


def load(client, path, count, seconds):
    """Lets threads take and release one lock for some seconds. Returns how often they were granted it."""
    grants = [0] * count
    end = time.perf_counter() + seconds

    def work(task):
        while time.perf_counter() < end:
            lock = client.Lock(path)
            lock.acquire()
            grants[task] += time.perf_counter() < end
            lock.release()

    running = [threading.Thread(target=work, args=(task,), daemon=True) for task in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(grants)


def now():
    return time.time_ns() // 1000


def drain(client, path):
    say("ready")
    held, waiting, granted = None, [], []

    def wait():
        lock = client.Lock(path)
        lock.acquire()
        granted.append(now())
        lock.release()

    for line in sys.stdin:
        word, _, count = line.strip().partition(" ")
        if word == "hold":
            held = client.Lock(path)
            held.acquire()
            say("held")
        elif word == "line":
            waiting = [threading.Thread(target=wait, daemon=True) for _ in range(int(count))]
            for thread in waiting:
                thread.start()
            say("waiting")
        elif word == "load":
            count, seconds = map(int, count.split())
            say(f"loaded {load(client, path, count, seconds)}")
        elif word == "free":
            say(f"freed {now()}")
            held.release()
        else:
            for thread in waiting:
                thread.join()
            say(" ".join(["done", *map(str, granted)]))
            granted.clear()


def say(line):
    print(line, flush=True)


main()
