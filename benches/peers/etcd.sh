. "$(dirname "$0")/common.sh"
go build -C "$here/etcd" -o "$place/etcd-program" .
command_of etcd "$place/etcd-program"
