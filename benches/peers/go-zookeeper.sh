. "$(dirname "$0")/common.sh"
go build -C "$here/zookeeper/go" -o "$place/go-zookeeper-program" .
command_of go-zookeeper "$place/go-zookeeper-program"
