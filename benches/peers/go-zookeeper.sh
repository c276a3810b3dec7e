. "$(dirname "$0")/common.sh"
go build -C "$here/go/zookeeper" -o "$place/go-zookeeper-program" .
command_of go-zookeeper "$place/go-zookeeper-program"
version_of go-zookeeper "$(sed -n 's|.*go-zookeeper/zk v||p' "$here/go/zookeeper/go.mod")"
