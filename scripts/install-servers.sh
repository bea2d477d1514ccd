#!/usr/bin/env bash
# The servers that tests marked `server` talk to and pip does not bring: Azurite, into .servers/ of the checkout.
# Needs npm, or apt-get to bring it.
set -euo pipefail
cd "$(dirname "$0")/.."

azurite=3.35.0
if [ "$(cat .servers/node_modules/azurite/package.json 2> /dev/null | grep -c "\"version\": \"$azurite\"")" = 1 ]; then
    exit 0
fi
if ! command -v npm > /dev/null; then
    if ! command -v apt-get > /dev/null; then
        echo "install-servers: npm is missing, and there is no apt-get; install Node.js with npm and run again" >&2
        exit 1
    fi
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        as_root=(sudo)
    fi
    export DEBIAN_FRONTEND=noninteractive
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends nodejs npm
fi
npm install --prefix .servers --no-save --no-audit --no-fund --loglevel=error "azurite@$azurite"
