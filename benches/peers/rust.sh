. "$(dirname "$0")/common.sh"
cd "$here/rust"
"${CARGO:-cargo}" build --release --locked --target-dir "$place/rust"
for name in rslock redlock distributed-lock; do
    command_of "$name" "$place/rust/release/$name"
done
for name in rslock redlock distributed-lock-redis; do
    version_of "${name%-redis}" "$(sed -n "s/^$name = .*\"=\([0-9.]*\)\".*/\1/p" Cargo.toml)"
done
