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
exec 9< "$0"
flock 9 # apt-get ends where another one works
# Several scripts follow one another: lists that were fetched within an hour are new.
if [ -z "$(find /var/lib/apt/lists -maxdepth 1 -name '*_Packages*' -cmin -60 2> /dev/null)" ]; then
    "${as_root[@]}" apt-get update -qq
fi
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@"
