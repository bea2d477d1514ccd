#!/usr/bin/env bash
# The tools that tests marked `server` use: ffmpeg and ffprobe, exiftool, strace. Debian and Ubuntu, as root or with sudo.
set -euo pipefail

packages=()
command -v ffprobe > /dev/null || packages+=(ffmpeg)
command -v exiftool > /dev/null || packages+=(libimage-exiftool-perl)
command -v strace > /dev/null || packages+=(strace)
if [ ${#packages[@]} -eq 0 ]; then
    exit 0
fi
"$(dirname "$0")/apt-install.sh" install-peers "${packages[@]}"
