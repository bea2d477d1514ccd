#!/usr/bin/env bash
# Ceph's S3 server from Debian's packages, for tests marked `ceph`. As root or with sudo; needs no docker.
set -euo pipefail

if command -v radosgw ceph-mon ceph-osd ceph > /dev/null; then
    exit 0
fi
if ! command -v apt-get > /dev/null; then
    echo "install-ceph: there is no apt-get; install radosgw, ceph-mon, ceph-osd and ceph-common and run again" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends radosgw ceph-mon ceph-osd ceph-common
