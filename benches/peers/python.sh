. "$(dirname "$0")/common.sh"
venv python "$here/python/requirements.txt"
for name in redis-py python-redis-lock; do
    command_of "$name" "$python" "$here/python/peers.py" "$name"
done
version_of redis-py "$(sed -n 's/^redis==//p' "$here/python/requirements.txt")"
version_of python-redis-lock "$(sed -n 's/^python-redis-lock==//p' "$here/python/requirements.txt")"
