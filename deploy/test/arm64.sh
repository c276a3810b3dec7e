# The file for arm64: hello, a job under its lock, the service and the doctor. On another processor it runs under qemu-user.
. "$(dirname "$0")/lib.sh"

needs curl redis-server unshare:util-linux
file=$RELEASE/fencepost-$VERSION-aarch64-linux
[ -e "$file" ] || fail "there is no file for arm64: \`cargo xtask dist cross\` says what is missing"
on_arm64=$work/on-arm64
printf '#!/bin/sh\nexec "$@"\n' > "$on_arm64"
if [ "$(uname -m)" != aarch64 ]; then
    qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || fail "qemu-user is missing: apt-get install qemu-user-static"
    # `run` needs PR_SET_CHILD_SUBREAPER.
    [ "$("$qemu" --version | sed -n 's/.*version \([0-9]*\).*/\1/p')" -ge 10 ] || fail "$qemu has to be version 10 or newer"
    export QEMU=$qemu
    # `run` starts its own file again, so the kernel has to know the emulator: by the binfmt_misc of a user namespace.
    cat > "$on_arm64" <<'END'
#!/bin/sh
exec unshare --user --map-root-user --mount sh -euc '
    mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    magic="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
    printf "%s" ":arm64:M::$magic:$mask:$QEMU:F" > /proc/sys/fs/binfmt_misc/register
    exec "$@"' sh "$@"
END
fi
chmod +x "$on_arm64"
export XDG_STATE_HOME=$work/state
[ "$("$on_arm64" "$file" --version)" = "fencepost $VERSION" ] || fail "version"
[ "$("$on_arm64" "$file" run hello -- echo hi)" = hi ] || fail "hello"
ok "hello runs"
port=$((20000 + RANDOM % 10000))
redis-server --port $port --save '' --loglevel warning > "$work/redis.log" 2>&1 &
redis=$!
on_exit+=('kill $redis; wait $redis')
until_ok 10 redis-cli -p $port ping
url=redis://127.0.0.1:$port
code=0; "$on_arm64" "$file" run -b $url job -- sh -c "'$file' show -b $url job > '$work/shown'; exit 7" || code=$?
[ $code = 7 ] && grep -q 'held by' "$work/shown" || { cat "$work/shown"; fail "run: $code"; }
ok "a job runs under its lock in Redis, and its exit code is passed on"
"$on_arm64" "$file" serve -b $url --listen 127.0.0.1:$((port + 1)) > "$work/serve" 2>&1 &
serve=$!
on_exit+=('kill -KILL $serve 2> /dev/null; wait $serve 2> /dev/null')
until_ok 60 curl -sf http://127.0.0.1:$((port + 1))/readyz
curl -sf --json '{"name": "hello", "ttl": "1m"}' http://127.0.0.1:$((port + 1))/v1/acquire | grep -q token || fail "acquire"
kill -TERM $serve
code=0; wait $serve || code=$?
[ $code = 0 ] || { cat "$work/serve"; fail "serve ended with $code"; }
ok "serve grants a lock and ends at TERM"
"$on_arm64" "$file" doctor -b $url > "$work/doctor" || { cat "$work/doctor"; fail "doctor"; }
"$on_arm64" "$file" doctor > "$work/doctor" || { cat "$work/doctor"; fail "doctor on a file"; }
ok "the doctor examines Redis and a file"
