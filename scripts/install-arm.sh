#!/usr/bin/env bash
# A compiler for ARM and its emulator, for `make prove`. Debian and Ubuntu, as root or with sudo.
set -euo pipefail

packages=()
command -v aarch64-linux-gnu-gcc > /dev/null || packages+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
command -v qemu-aarch64 > /dev/null || packages+=(qemu-user)
if [ ${#packages[@]} -eq 0 ]; then
    exit 0
fi
"$(dirname "$0")/apt-install.sh" install-arm "${packages[@]}"
