# The compose file under podman: three workers and one lock, and what its page says about killed workers.
. "$(dirname "$0")/lib.sh"

needs podman runc redis-server busybox:busybox-static curl iptables /usr/lib/podman/aardvark-dns:aardvark-dns
export CONTAINERS_CONF=$PWD/deploy/test/containers.conf
program=$RELEASE/fencepost-$VERSION-$(uname -m)-linux
cat > "$work/podman" <<END
#!/bin/sh
exec podman --root "$work/store" --runroot "$work/run" --storage-driver overlay "\$@"
END
chmod +x "$work/podman"
pod() { "$work/podman" "$@"; }
compose() { timeout 120 "${PYTHON%/*}/podman-compose" --podman-path "$work/podman" -f deploy/compose/compose.yaml "$@"; }
on_exit+=('compose down -t 1 --volumes > /dev/null 2>&1' 'pod rm -fa -t 0 > /dev/null' 'umount "$work"/store/overlay 2> /dev/null')

pod load -q -i "$RELEASE/fencepost-$VERSION-image-$(dpkg --print-architecture).tar" > "$work/load" 2>&1 || { cat "$work/load"; fail "load"; }
# The images of Redis and of busybox, made of this system's programs.
mkdir -p "$work/redis/data" "$work/redis/etc" "$work/redis/usr/bin" "$work/busybox/bin" "$work/busybox/tmp"
for file in $(command -v redis-server) $(ldd "$(command -v redis-server)" | grep -o '/[^ ]*'); do
    mkdir -p "$work/redis${file%/*}"
    cp -L "$file" "$work/redis$file"
done
cp "$(command -v busybox)" "$work/busybox/bin/"
for name in sh echo sleep; do ln -s busybox "$work/busybox/bin/$name"; done
for name in redis busybox; do tar -C "$work/$name" -c . | pod import -q - "localhost/$name:test" > /dev/null; done
port=$((20000 + RANDOM % 10000))
url=http://127.0.0.1:$((port + 1))
export REDIS_PORT=$port PAGE_PORT=$((port + 1)) REDIS_IMAGE=localhost/redis:test WORKER_IMAGE=localhost/busybox:test

compose up -d > "$work/up" 2>&1 || { cat "$work/up"; fail "compose up"; }
held() { "$program" show --json -b "$url" stock/42 > "$work/shown" && "$PYTHON" - "$work/shown" "$@" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
holders, waiters = len(d["holders"]), len(d["waiters"])
assert [holders, waiters] == [int(n) for n in sys.argv[2:4]], d
PY
}
until_ok 60 held 1 2
curl -sf "$url/" | grep -q stock/42 || fail "the page has no lock stock/42"
token() { "$PYTHON" -c 'import json,sys; print(json.load(open(sys.argv[1]))["holders"][0]["token"])' "$work/shown"; }
first=$(token)
moved() { held 1 2 && [ "$(token)" -gt "$((first + 2))" ]; }
until_ok 30 moved
ok "three workers of the compose file hand one lock on, and the page shows it"
compose kill -s KILL worker > "$work/kill" 2>&1 || { cat "$work/kill"; fail "compose kill"; }
since=$SECONDS
free() { "$program" show -b "$url" stock/42 | grep -q 'is free'; }
until_ok 45 free
ok "when all three are killed, the lock is free after $((SECONDS - since)) s"
