# The image under podman, read-only and as its own user: the service, a copy of the program for a job in another image, and one job of three
# containers.
. "$(dirname "$0")/lib.sh"

needs podman runc redis-server busybox:busybox-static curl
export CONTAINERS_CONF=$PWD/deploy/test/containers.conf
store="--root $work/store --runroot $work/run --storage-driver overlay"
pod() { podman $store "$@"; }
port=$((20000 + RANDOM % 20000))
redis-server --port $port --save '' --loglevel warning > "$work/redis.log" 2>&1 &
redis=$!
on_exit+=('kill $redis; wait $redis' 'pod rm -fa -t 0' 'umount "$work"/store/overlay')
until_ok 10 redis-cli -p $port ping
url=redis://127.0.0.1:$port

image=ghcr.io/fencepost/fencepost:$VERSION
podman $store load -q -i "$RELEASE/fencepost-$VERSION-image-$(dpkg --print-architecture).tar" > "$work/load" 2>&1 || { cat "$work/load"; fail "load"; }
[ "$(pod inspect -f '{{.Config.User}}' "$image")" = 65532:65532 ] || fail "the image's user"
safe="--network=host --read-only --cap-drop=all --security-opt no-new-privileges"

pod run -d --name serve $safe "$image" serve -b "$url" --listen 127.0.0.1:$((port + 1)) > /dev/null
until_ok 20 curl -sf http://127.0.0.1:$((port + 1))/readyz
pod top serve huser | tail -1 | grep -qx 65532 || fail "not as 65532: $(pod top serve huser)"
pod exec serve sh -c true 2> /dev/null && fail "the image has a shell"
ok "serve runs read-only as user 65532 without a shell, /readyz answers"
pod stop -t 30 serve > /dev/null
[ "$(pod inspect -f '{{.State.ExitCode}}' serve)" = 0 ] || fail "the end of serve: $(pod inspect -f '{{.State.ExitCode}}' serve)"

# Another image: the busybox of this system, and nothing else.
mkdir -p "$work/other/bin"
cp "$(command -v busybox)" "$work/other/bin/busybox"
for name in sh echo date sleep; do ln -s busybox "$work/other/bin/$name"; done
tar -C "$work/other" -c . | pod import -q - other:1 > /dev/null
pod volume create shared > /dev/null
pod run --rm $safe -v shared:/shared "$image" copy-to /shared
pod run --rm $safe -v shared:/fencepost:ro -e FENCEPOST_BACKEND="$url" other:1 /fencepost/fencepost run job -- sh -c '/fencepost/fencepost show job' > "$work/job"
grep -q 'held by' "$work/job" || { cat "$work/job"; fail "the job of another image held no lock"; }
ok "copy-to into a volume, and a job of another image runs under its lock"

for n in 1 2 3; do
    pod run -d --name "once$n" $safe -v shared:/fencepost:ro -v "$work:/out" -e FENCEPOST_BACKEND="$url" other:1 \
        /fencepost/fencepost run -q --across-hosts --skip-ok --once-per 24h -w 10s nightly -- sh -c 'echo run >> /out/runs; sleep 1' > /dev/null
done
for n in 1 2 3; do [ "$(pod wait "once$n")" = 0 ] || { pod logs "once$n"; fail "container $n of three"; }; done
[ "$(wc -l < "$work/runs")" = 1 ] || fail "the job of three containers ran $(wc -l < "$work/runs") times"
ok "three containers and one Redis run a job once"

pod run -d --name dies $safe -v shared:/fencepost:ro -e FENCEPOST_BACKEND="$url" other:1 /fencepost/fencepost run --ttl 5s dying -- sleep 600 > /dev/null
show() { "$RELEASE/fencepost-$VERSION-$(uname -m)-linux" show -b "$url" --exit-code "$1"; }
until_ok 10 show dying
pod kill dies > /dev/null
since=$SECONDS
until_ok 12 sh -c "! '$RELEASE/fencepost-$VERSION-$(uname -m)-linux' show -b $url --exit-code dying"
ok "a killed container's lock of 5 s is free after $((SECONDS - since)) s"

for n in 1 2; do
    pod run -d --name "twin$n" $safe --uts=private --hostname same -v shared:/fencepost:ro -e FENCEPOST_BACKEND="$url" other:1 \
        /fencepost/fencepost run twins -- sleep 600 > /dev/null
done
queue() { "$RELEASE/fencepost-$VERSION-$(uname -m)-linux" show --json -b "$url" twins | "$PYTHON" -c 'import json,sys; d=json.load(sys.stdin); assert len(d["holders"])==1 and len(d["waiters"])==1, d; print(d["holders"][0]["host"], d["waiters"][0]["host"])'; }
until_ok 10 queue
first=$(pod ps -q --filter name=twin1)
pod kill twin1 > /dev/null 2>&1 || true
until_ok 45 sh -c "'$RELEASE/fencepost-$VERSION-$(uname -m)-linux' show --json -b $url twins | '$PYTHON' -c 'import json,sys; d=json.load(sys.stdin); assert len(d[\"holders\"])==1 and not d[\"waiters\"]'"
ok "two containers with one host name and pid 1 are two claims: the second is granted the lock of the first, which was killed"
