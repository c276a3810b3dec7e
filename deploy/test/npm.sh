# The packages of npm in a fresh folder, from their files.
. "$(dirname "$0")/lib.sh"

needs node:nodejs npm
export XDG_STATE_HOME=$work/state
node=$(node -p process.arch)
folder=$work/app
mkdir "$folder" "$work/alone"
install() { (cd "$1" && npm init --yes > /dev/null && npm install --offline --no-audit --no-fund "${@:2}" > "$work/npm" 2>&1) || { cat "$work/npm"; fail "npm install"; }; }
install "$folder" "$RELEASE/fencepost-cli-linux-$node-$VERSION.tgz" "$RELEASE/fencepost-cli-$VERSION.tgz"
cd "$folder"
[ "$(npx --offline fencepost run hello -- echo hi)" = hi ] || fail "hello"
ok "npm install from the files, hello runs"
code=0; npx --offline fencepost run hello -- sh -c 'exit 7' || code=$?
[ $code = 7 ] || fail "the exit code is $code"
ok "the program's exit code is npm's"

node_modules/.bin/fencepost run stopped -- sh -c "trap 'echo term > $work/term; exit 3' TERM; echo > $work/ready; while :; do sleep 0.1; done" &
run=$!
until_ok 10 test -e "$work/ready"
kill -TERM $run
code=0; wait $run || code=$?
[ -e "$work/term" ] && [ $code = 3 ] || fail "TERM is not passed on: $code"
ok "TERM reaches the program"

cd - > /dev/null
install "$work/alone" --omit=optional "$RELEASE/fencepost-cli-$VERSION.tgz"
code=0; "$work/alone/node_modules/.bin/fencepost" ls 2> "$work/said" || code=$?
[ $code = 1 ] && grep -q "fencepost-cli-linux-$node is not installed" "$work/said" || { cat "$work/said"; fail "a missing program"; }
ok "a missing platform package is named"
