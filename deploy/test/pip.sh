# The wheel in a fresh environment of Python, from its file.
. "$(dirname "$0")/lib.sh"

"$PYTHON" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --no-index --find-links "$RELEASE" fencepost-cli
export XDG_STATE_HOME=$work/state
[ "$("$work/venv/bin/fencepost" run hello -- echo hi)" = hi ] || fail "hello"
ok "pip install from the file, hello runs"
[ "$("$work/venv/bin/fencepost" --version)" = "fencepost $VERSION" ] || fail "version"
"$work/venv/bin/pip" uninstall --quiet --yes fencepost-cli
[ ! -e "$work/venv/bin/fencepost" ] || fail "it is left behind"
ok "uninstall leaves no program"
