# A real systemd in a container of its own starts, stops and restarts the units of the Debian package.
. "$(dirname "$0")/lib.sh"

needs debootstrap systemd-nspawn:systemd-container openssl
root=$work/root
debian "$root"
cp "$deb" "$root/fencepost.deb"
chroot "$root" dpkg -i /fencepost.deb > "$work/dpkg" 2>&1 || { cat "$work/dpkg"; fail "dpkg"; }
echo "127.0.0.1 localhost" > "$root/etc/hosts"
# The test starts Redis itself.
rm -f "$root"/etc/systemd/system/multi-user.target.wants/redis-server.service "$root"/etc/systemd/system/redis.service
systemd-nspawn -q -D "$root" --boot --register=no --keep-unit --private-network --rlimit=RLIMIT_NOFILE=32768:32768 --console=pipe > "$work/boot" 2>&1 < /dev/null &
nspawn=$!
on_exit+=('kill -KILL $nspawn; wait $nspawn 2> /dev/null')
init() { pgrep -P "$nspawn" | head -1; }
until_ok 20 init
inside() { nsenter --target "$(init)" --all -- sh -euc "$1"; }
until_ok 60 inside 'systemctl is-system-running | grep -E "running|degraded"'
check() { inside "$1" > "$work/out" 2>&1 || { cat "$work/out"; inside 'systemctl status --no-pager -l fencepost; journalctl -n 40 --no-pager' || true; fail "$1"; }; }
property() { inside "systemctl show --property=$1 --value fencepost"; }

check 'systemctl start fencepost; systemctl is-active fencepost'
check 'curl -sf http://127.0.0.1:7070/readyz && curl -sf http://127.0.0.1:7070/ | grep -q "<title>"'
ok "the unit serves a SQLite file as user $(inside "stat -c %u /proc/$(property MainPID)"), the page answers"

check 'curl -sf -H "Content-Type: application/json" -d "{\"name\": \"kept\", \"ttl\": \"10m\", \"holder\": \"test\"}" http://127.0.0.1:7070/v1/acquire'
check 'fencepost ls -b http://127.0.0.1:7070 | grep kept'
ok "an administrator lists its locks by the service"
before=$(property MainPID)
check 'systemctl restart fencepost; fencepost ls -b http://127.0.0.1:7070 | grep kept'
[ "$before" != "$(property MainPID)" ] || fail "it was not restarted"
ok "a restart keeps its leases"
inside 'kill -KILL $(systemctl show --property=MainPID --value fencepost)'
until_ok 20 inside "curl -sf http://127.0.0.1:7070/readyz && test \$(systemctl show --property=NRestarts --value fencepost) -ge 1"
ok "killed, it is started again"
check 'systemctl stop fencepost'
[ "$(property Result)" = success ] || fail "after a stop the result is $(property Result)"
ok "a stop counts as success"
check 'systemd-run --quiet --pipe --wait --property=DynamicUser=yes --property=User=fencepost --property=StateDirectory=fencepost-serve --setenv=XDG_STATE_HOME=/var/lib/fencepost-serve fencepost ls -l'
grep -q kept "$work/out" || { cat "$work/out"; fail "ls beside a stopped service"; }
ok "its state folder serves an administrator while it is stopped"

inside 'setsid redis-server --port 6379 --save "" --daemonize yes --requirepass hunter2 > /dev/null'
# The lines of docs/systemd.md.
check 'install -d /etc/fencepost; umask 077; echo hunter2 > /etc/fencepost/password'
check 'cd /usr/share/doc/fencepost/examples; install -D -m 644 network.conf /etc/systemd/system/fencepost.service.d/network.conf'
check 'sed -i s/redis.example.com/127.0.0.1/ /etc/systemd/system/fencepost.service.d/network.conf'
inside 'fencepost serve token add --tokens /etc/fencepost/tokens.jsonl --allow acquire,read:stock/ ci > /run/token'
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 9 -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 \
    -addext basicConstraints=critical,CA:FALSE -keyout "$root/etc/fencepost/key.pem" -out "$root/etc/fencepost/cert.pem" 2> /dev/null
chmod 600 "$root/etc/fencepost/key.pem"
check 'systemctl daemon-reload && systemctl restart fencepost; curl -sf --cacert /etc/fencepost/cert.pem https://localhost:7070/readyz'
check 'FENCEPOST_SERVICE_TOKEN=$(cat /run/token) fencepost run -b "https://localhost:7070?ca=/etc/fencepost/cert.pem" stock/1 -- redis-cli -a hunter2 --no-auth-warning --scan'
grep -q stock "$work/out" || { cat "$work/out"; fail "the lock is not in Redis"; }
check 'curl -s -o /dev/null -w "%{http_code}" --cacert /etc/fencepost/cert.pem https://localhost:7070/v1/locks | grep 401'
ok "with network.conf it serves Redis to other machines, with TLS, access tokens and a password from credentials"
check 'systemctl stop fencepost'

printf '#!/bin/sh\nfencepost show report > /tmp/report\n' > "$root/opt/report"
printf '#!/bin/sh\necho "$FENCEPOST_TOKEN" >> /tmp/terms\nexec sleep 600\n' > "$root/opt/indexer"
check 'install -D /opt/report /etc/fencepost/jobs/report; install -D /opt/indexer /etc/fencepost/leaders/indexer'
check 'systemctl start fencepost-job@report; grep "held by" /tmp/report; systemctl start fencepost-job@report; systemctl enable --now fencepost-job@report.timer; systemctl list-timers --no-pager | grep report'
ok "the job's unit runs under its lock, and its timer is enabled"
check 'systemctl enable --now fencepost-leader@indexer'
until_ok 10 inside 'test $(wc -l < /tmp/terms) = 1'
inside 'fencepost evict indexer --now --yes --reason test --token $(head -1 /tmp/terms)' > /dev/null 2>&1
until_ok 30 inside 'test $(wc -l < /tmp/terms) = 2'
check 'systemctl stop fencepost-leader@indexer; fencepost show indexer | grep "is free"'
ok "a leader that is evicted joins again, and one that is stopped has released its lock"
