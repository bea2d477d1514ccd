#!/usr/bin/env bash
# A Ceph cluster of one machine with its S3 server, on the loopback and in memory (8 GiB at most, or $CEPH_GIB): for
# tests and benchmarks. It stays in the background; `start-ceph.sh --stop DIR` ends it.
#
#   scripts/start-ceph.sh DIR PORT KEY SECRET    DIR: empty or missing; a user with KEY and SECRET is made
set -euo pipefail

stop() {
    local file pid
    for file in "$1"/*.pid; do
        pid=$(cat "$file" 2> /dev/null) || continue
        kill -KILL "$pid" 2> /dev/null || continue # nothing is worth a slow end: its disk is memory
        tail --pid="$pid" -f /dev/null # until it is gone
    done
}

if [ "${1:-}" = --stop ]; then
    stop "${2:?usage: start-ceph.sh --stop DIR}"
    exit 0
fi
dir=${1:?usage: start-ceph.sh DIR PORT KEY SECRET} port=${2:?} key=${3:?} secret=${4:?}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
mkdir "$dir"/{mon,osd,rgw,log}
monitor=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
fsid=$(cat /proc/sys/kernel/random/uuid)
export CEPH_CONF=$dir/ceph.conf
cat > "$CEPH_CONF" << END
[global]
fsid = $fsid
mon initial members = a
mon host = [v1:127.0.0.1:$monitor]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms bind msgr2 = false
ms bind ipv6 = false
run dir = $dir
log file = $dir/log/\$name.log
admin socket = $dir/\$name.asok
pid file = $dir/\$name.pid
mon data = $dir/mon
osd data = $dir/osd
rgw data = $dir/rgw
# one disk, which is memory, and one copy of everything
osd objectstore = memstore
memstore device bytes = $((${CEPH_GIB:-8} << 30))
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd crush update on start = false
osd class update on start = false
osd max object name len = 1024
mon allow pool size one = true
mon max pg per osd = 1000
mon warn on pool no redundancy = false
mon data avail crit = 1
mon data avail warn = 2
rgw frontends = beast endpoint=127.0.0.1:$port
rgw thread pool size = 64
rgw dynamic resharding = false
debug mon = 0/0
debug osd = 0/0
debug rgw = 0/0
END

ended() {
    local status=$?
    if [ "$status" -ne 0 ]; then
        cat "$dir/log/start.log" >&2
        stop "$dir"
    fi
}
trap ended EXIT
quietly() {
    "$@" >> "$dir/log/start.log" 2>&1
}
quietly monmaptool --create --fsid "$fsid" --addv a "[v1:127.0.0.1:$monitor]" "$dir/monmap"
quietly ceph-mon --mkfs -i a --monmap "$dir/monmap"
quietly ceph-mon -i a
disk=$(cat /proc/sys/kernel/random/uuid)
for _ in $(seq 60); do # a monitor that has only begun refuses commands; the same disk gets the same number
    number=$(ceph osd new "$disk" 2>> "$dir/log/start.log") && break
    sleep 0.5
done
test -n "$number" # nobody answered: the log is told
quietly ceph-osd -i "$number" --mkfs --osd-uuid "$disk"
quietly ceph osd crush add "osd.$number" 1.0 root=default host=localhost
quietly ceph-osd -i "$number"
quietly radosgw -n client.rgw
quietly radosgw-admin user create --uid=tests --display-name=tests --access-key="$key" --secret-key="$secret"
for _ in $(seq 600); do
    if (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then
        exit 0
    fi
    sleep 0.1
done
echo "start-ceph: the S3 server does not listen on port $port; see $dir/log" >&2
exit 1
