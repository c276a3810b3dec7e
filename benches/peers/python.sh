. "$(dirname "$0")/common.sh"
venv python "$here/python/requirements.txt"
for name in redis-py python-redis-lock; do
    command_of "$name" "$python" "$here/python/peers.py" "$name"
done
