. "$(dirname "$0")/common.sh"
go build -C "$here/go/redsync" -o "$place/redsync-program" .
command_of redsync "$place/redsync-program"
version_of redsync "$(sed -n 's|.*go-redsync/redsync/v4 v||p' "$here/go/redsync/go.mod")"
