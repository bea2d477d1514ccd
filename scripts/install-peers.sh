#!/usr/bin/env bash
# The tools that tests marked `server` compare with: ffmpeg and ffprobe, exiftool. Debian and Ubuntu, as root or with sudo.
set -euo pipefail

packages=()
command -v ffprobe > /dev/null || packages+=(ffmpeg)
command -v exiftool > /dev/null || packages+=(libimage-exiftool-perl)
if [ ${#packages[@]} -eq 0 ]; then
    exit 0
fi
if ! command -v apt-get > /dev/null; then
    echo "install-peers: ${packages[*]} are missing, and there is no apt-get; install them and run again" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}"
