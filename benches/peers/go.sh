. "$(dirname "$0")/common.sh"
go build -C "$here/go" -o "$place/redsync-program" .
command_of redsync "$place/redsync-program"
