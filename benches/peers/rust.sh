. "$(dirname "$0")/common.sh"
cd "$here/rust"
"${CARGO:-cargo}" build --release --locked --target-dir "$place/rust"
for name in rslock redlock distributed-lock; do
    command_of "$name" "$place/rust/release/$name"
done
