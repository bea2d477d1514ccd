#!/usr/bin/env bash
# Ceph's S3 server from Debian's packages, for tests marked `ceph`. As root or with sudo; needs no docker.
set -euo pipefail

if command -v radosgw ceph-mon ceph-osd ceph > /dev/null; then
    exit 0
fi
"$(dirname "$0")/apt-install.sh" install-ceph radosgw ceph-mon ceph-osd ceph-common
