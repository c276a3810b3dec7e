"""kazoo's locks in the mixed soak: URL, FOLDER, and KIND:PATH:CYCLES for each thread. See ../README.md."""

import os
import sys
import threading

from kazoo.client import KazooClient

overlaps = 0
done = 0


def main():
    global done
    url, folder, *specs = sys.argv[1:]
    client = KazooClient(hosts=url.removeprefix("zookeeper://"), timeout=30.0)
    client.start(timeout=30)
    threads = []
    for number, spec in enumerate(specs):
        kind, path, cycles = spec.split(":")
        arguments = (client, folder, kind, path, int(cycles), f"kazoo-{number}")
        threads.append(threading.Thread(target=soak, args=arguments, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print('{"cycles":%d,"overlaps":%d}' % (done, overlaps), flush=True)


def soak(client, folder, kind, path, cycles, name):
    global done
    place = os.path.join(folder, path[1:].replace("/", "-"))
    # One object for all cycles, as programs have it.
    lock = {"mutex": client.Lock, "read": client.ReadLock, "write": client.WriteLock}[kind](path, name)
    for _ in range(cycles):
        lock.acquire()
        inside(place, kind, name)
        lock.release()
        done += 1


def inside(place, kind, name):
    """Leaves a file as long as it holds, and looks whose files are there."""
    global overlaps
    own = os.path.join(place, "in", f"{kind}.{name}")
    open(own, "x").close()
    there = os.listdir(os.path.join(place, "in"))
    if kind == "read":
        strangers = sum(not file.startswith("read.") for file in there)
    else:
        strangers = len(there) - 1
    if strangers > 0:
        overlaps += 1
    if kind != "read":
        counter = os.path.join(place, "count")
        with open(counter) as file:
            count = int(file.read())
        with open(counter, "w") as file:
            file.write(str(count + 1))
    os.remove(own)


main()
