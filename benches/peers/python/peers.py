"""redis-py's own lock and python-redis-lock on the measuring line: see ../README.md for the words they are spoken to with."""

import sys
import threading
import time

import redis
import redis_lock

LEASE = 30
PATIENCE = 20


def by_redis_py(client, name):
    return client.lock(name, timeout=LEASE, blocking_timeout=PATIENCE)


def by_python_redis_lock(client, name):
    return redis_lock.Lock(client, name, expire=LEASE)


def take(lock):
    if isinstance(lock, redis_lock.Lock):
        return lock.acquire(blocking=True, timeout=PATIENCE)
    return lock.acquire()


def main():
    make = {"redis-py": by_redis_py, "python-redis-lock": by_python_redis_lock}[sys.argv[1]]
    word, url = sys.argv[2], sys.argv[3].split(",")[0]
    # One connection for each thread that uses it at the same time; by default 100 at most, and an error for the next.
    client = redis.Redis.from_url(url, max_connections=10_000)
    if word == "cycle":
        cycle(client, make, int(sys.argv[4]))
    elif word == "tasks":
        tasks(client, make, int(sys.argv[4]), float(sys.argv[5]))
    else:
        drain(client, make, sys.argv[4])


def cycle(client, make, count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        lock = make(client, "uncontended")
        take(lock)
        lock.release()
        times.append((time.perf_counter() - start) * 1e6)
    times.sort()
    print('{"p50":%f}' % times[count // 2])


def tasks(client, make, count, span):
    cycles = [0] * count
    start = time.perf_counter()

    def work(task):
        while time.perf_counter() - start < span:
            lock = make(client, f"task/{task}")
            if take(lock):
                lock.release()
                cycles[task] += 1

    running = [threading.Thread(target=work, args=(task,)) for task in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    print('{"rate":%f}' % (sum(cycles) / (time.perf_counter() - start)))


def load(client, make, name, count, seconds):
    """Lets threads take and release one lock for some seconds. Returns how often they were granted it."""
    grants = [0] * count
    end = time.perf_counter() + seconds

    def work(task):
        while time.perf_counter() < end:
            lock = make(client, name)
            try:
                if take(lock):
                    grants[task] += time.perf_counter() < end
                    lock.release()
            except (redis.exceptions.RedisError, redis_lock.NotAcquired):
                pass  # Counted as not granted.

    running = [threading.Thread(target=work, args=(task,), daemon=True) for task in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(max(0, end + PATIENCE + 5 - time.perf_counter()))
    return sum(grants)


def now():
    return time.time_ns() // 1000


def drain(client, make, name):
    say("ready")
    held, waiting, granted = None, [], []

    def wait():
        lock = make(client, name)
        try:
            if take(lock):
                granted.append(now())
                lock.release()
        except (redis.exceptions.RedisError, redis_lock.NotAcquired):
            pass  # Counted as not granted.

    for line in sys.stdin:
        word, _, count = line.strip().partition(" ")
        if word == "hold":
            held = make(client, name)
            take(held)
            say("held")
        elif word == "line":
            waiting = [threading.Thread(target=wait, daemon=True) for _ in range(int(count))]
            for thread in waiting:
                thread.start()
            say("waiting")
        elif word == "load":
            count, seconds = map(int, count.split())
            say(f"loaded {load(client, make, name, count, seconds)}")
        elif word == "free":
            say(f"freed {now()}")
            held.release()
        else:
            # python-redis-lock starts its wait again each time that it was woken for nothing.
            end = time.monotonic() + PATIENCE + 5
            for thread in waiting:
                thread.join(max(0, end - time.monotonic()))
            say(" ".join(["done", *map(str, granted)]))
            granted.clear()


def say(line):
    print(line, flush=True)


main()
