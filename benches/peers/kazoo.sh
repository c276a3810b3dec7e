. "$(dirname "$0")/common.sh"
venv kazoo "$here/zookeeper/requirements.txt"
command_of kazoo "$python" "$here/zookeeper/peers.py"
command_of kazoo-soak "$python" "$here/zookeeper/soak.py"
