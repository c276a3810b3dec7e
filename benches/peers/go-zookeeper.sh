. "$(dirname "$0")/common.sh"
go build -C "$here/zookeeper/go" -o "$place/go-zookeeper-program" .
command_of go-zookeeper "$place/go-zookeeper-program"
version_of go-zookeeper "$(sed -n 's|.*go-zookeeper/zk v||p' "$here/zookeeper/go/go.mod")"
