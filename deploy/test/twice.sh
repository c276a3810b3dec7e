# What was built, built again in an empty folder: the same bytes.
. "$(dirname "$0")/lib.sh"

cp -a "$RELEASE" "$work/first"
CARGO_TARGET_DIR=$work/target cargo xtask dist > "$work/log" 2>&1 || { tail -50 "$work/log"; fail "the second build"; }
diff "$work/first/SHA256SUMS" "$work/target/dist/release/SHA256SUMS" || fail "the second build has other bytes"
ok "$(wc -l < "$work/first/SHA256SUMS") files have the same checksums in two builds"
