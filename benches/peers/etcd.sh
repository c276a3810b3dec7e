. "$(dirname "$0")/common.sh"
go build -C "$here/go/etcd" -o "$place/etcd-program" .
command_of etcd "$place/etcd-program"
version_of etcd "$(sed -n 's|.*go.etcd.io/etcd/client/v3 v||p' "$here/go/etcd/go.mod")"
