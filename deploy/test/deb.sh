# The Debian package on a fresh root: installed, a job of cron runs under a lock, removed and purged.
. "$(dirname "$0")/lib.sh"

needs lintian debootstrap unshare:util-linux rpm
# That of the other processor type, too.
lintian --fail-on error,warning --allow-root "$RELEASE"/*.deb > "$work/lintian" 2>&1 || { cat "$work/lintian"; fail "lintian"; }
ok "lintian finds no error and no warning"

root=$work/root
debian "$root"
cp "$deb" "$root/fencepost.deb"
# `run` needs /proc, and each program that is left ends with the space.
inside() { unshare --mount --pid --fork sh -euc 'mount -t proc proc "$1/proc"; exec chroot "$1" sh -euc "$2"' sh "$root" "$1"; }

inside '! command -v cargo && apt-get -qq install /fencepost.deb
    fencepost run hello -- echo hi | grep -x hi
    test -s /usr/share/man/man1/fencepost-run.1.gz && test -s /usr/share/bash-completion/completions/fencepost
    fencepost config | grep -q /etc/fencepost.toml || fencepost config
    ls /var/lib/fencepost/locks.db' > "$work/installed" 2>&1 || { cat "$work/installed"; fail "install"; }
ok "installed without cargo, hello runs"

cat > "$root/etc/cron.d/nightly" <<'CRON'
* * * * * root /usr/bin/fencepost run -q --skip-ok --once-per 24h -w 10s nightly -- sh -c 'fencepost show nightly > /tmp/shown; mv /tmp/shown /tmp/done'
CRON
inside 'cron -f & end=$(($(date +%s) + 80)); until test -s /tmp/done; do test $(date +%s) -lt $end; sleep 0.2; done; cat /tmp/done' > "$work/cron" 2>&1 || { cat "$work/cron"; fail "cron"; }
grep -q 'held by' "$work/cron" || { cat "$work/cron"; fail "the job of cron held no lock"; }
ok "a line of cron runs under its lock"

inside 'systemd-analyze verify --man=no --recursive-errors=yes /usr/lib/systemd/system/fencepost.service fencepost-job@x.timer fencepost-leader@x.service' > "$work/verify" 2>&1 || { cat "$work/verify"; fail "systemd-analyze verify"; }
[ ! -s "$work/verify" ] || { cat "$work/verify"; fail "systemd-analyze verify prints something"; }
ok "systemd-analyze verify is clean"
inside 'systemd-analyze security --no-pager --offline=true --threshold=20 /usr/lib/systemd/system/fencepost.service | tail -1' > "$work/security" 2>&1 || { cat "$work/security"; fail "systemd-analyze security"; }
ok "exposure $(grep -o '[0-9.]* OK' "$work/security" | cut -d' ' -f1)"

inside 'apt-get -qq remove fencepost && ls /var/lib/fencepost/locks.db /etc/fencepost.toml && ! command -v fencepost' > "$work/removed" 2>&1 || { cat "$work/removed"; fail "remove"; }
ok "remove keeps the locks and the settings"
inside 'apt-get -qq purge fencepost && test ! -e /var/lib/fencepost && test ! -e /etc/fencepost.toml' > "$work/purged" 2>&1 || { cat "$work/purged"; fail "purge"; }
ok "purge deletes both"

rpm=$RELEASE/fencepost-$VERSION-1.$(uname -m).rpm
mkdir "$work/rpm"
# Its scripts are run by the shell of the root that Debian's package has left.
for to in "$work/rpm --noscripts" "$root"; do
    rpm --root $to --install --nodeps "$rpm" > "$work/rpm.log" 2>&1 || { cat "$work/rpm.log"; fail "rpm --root $to"; }
    rpm --root ${to% *} --verify --nodeps fencepost || fail "rpm --verify"
    [ "$(chroot ${to% *} /usr/bin/fencepost --version)" = "fencepost $VERSION" ] || fail "the program of the RPM package"
done
rpm --root "$root" --erase fencepost > "$work/rpm.log" 2>&1 || { cat "$work/rpm.log"; fail "rpm --erase"; }
[ ! -e "$root/usr/bin/fencepost" ] && [ ! -e "$root/usr/lib/systemd/system/fencepost.service" ] || fail "rpm --erase leaves files"
[ "$(rpm -qp --scripts "$rpm" | grep -c scriptlet)" = 3 ] || fail "the scripts of the RPM package"
ok "the RPM package is installed into an empty root and into one with a shell, verified, run and erased"
