#!/usr/bin/env bash
# Debian or Ubuntu packages, as root or with sudo: apt-install.sh WHO_ASKS PACKAGE ...
set -euo pipefail

who=$1
shift
if ! command -v apt-get > /dev/null; then
    echo "$who: $* are missing, and there is no apt-get; install them and run again" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@"
