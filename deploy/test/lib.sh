# What the scripts of this folder share. RELEASE: the folder of the files that `cargo xtask dist` has built. SCRATCH: a folder for what is
# kept. A script prints a line `ok: …` for each check, and ends with the first check that fails.
set -euo pipefail

VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
work=$(mktemp -d)
on_exit=()
finish() {
    local code=$? each
    for each in "${on_exit[@]}"; do eval "$each" || true; done
    rm -rf "$work"
    exit "$code"
}
trap finish EXIT

ok() { echo "ok: $*"; }
fail() { echo "failed: $*" >&2; exit 1; }

# Fails if one of these programs is missing. `PROGRAM:PACKAGE` names a package of Debian with another name.
needs() {
    local each missing=()
    for each in "$@"; do command -v "${each%%:*}" > /dev/null || missing+=("${each##*:}"); done
    [ ${#missing[@]} = 0 ] || fail "programs are missing: apt-get install ${missing[*]}"
}

# Looks ten times a second until the command succeeds, for at most so many seconds.
until_ok() {
    local end=$((SECONDS + $1)); shift
    until "$@" > /dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || fail "not within the time: $*"
        sleep 0.1
    done
}

# A fresh root of Debian, with systemd, cron, Redis and curl, and without cargo.
debian() {
    local base=$SCRATCH/debian
    if [ ! -e "$base/complete" ]; then
        rm -rf "$base"
        . /etc/os-release
        debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,cron,redis-server,curl,iproute2 "$VERSION_CODENAME" "$base" \
            > "$SCRATCH/debootstrap.log" 2>&1 || fail "debootstrap: see $SCRATCH/debootstrap.log"
        touch "$base/complete"
    fi
    cp -a "$base" "$1"
}

deb=$RELEASE/fencepost_${VERSION}_$(dpkg --print-architecture).deb
