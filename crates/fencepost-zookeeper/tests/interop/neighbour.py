"""Holds a lock of kazoo's from its "held" to the next line of its input."""

import sys

from kazoo.client import KazooClient

hosts, path, kind, session = sys.argv[1:5]
client = KazooClient(hosts=hosts, timeout=int(session) / 1000)
client.start(timeout=30)
if kind == "beside":
    # kazoo in a folder of Curator's: it counts their names, and they count its number.
    lock = client.Lock(path, "kazoo", extra_lock_patterns=["-lock-"])
elif kind == "mutex":
    lock = client.Lock(path, "kazoo")
elif kind.startswith("semaphore"):
    lock = client.Semaphore(path, max_leases=int(kind.removeprefix("semaphore")))
elif kind == "read":
    lock = client.ReadLock(path, "kazoo")
elif kind == "write":
    lock = client.WriteLock(path, "kazoo")
else:
    raise SystemExit(f"unknown kind {kind}")
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
client.stop()
