. "$(dirname "$0")/common.sh"
go build -C "$here/go" -o "$place/redsync-program" .
command_of redsync "$place/redsync-program"
version_of redsync "$(sed -n 's|.*go-redsync/redsync/v4 v||p' "$here/go/go.mod")"
