#!/usr/bin/env bash
# The servers that tests marked `server` talk to and pip does not bring: Postgres from
# Debian, and Azurite, into .servers/ of the checkout; and Debian's Chromium, which looks at pages.
# Needs npm, or apt-get to bring it.
set -euo pipefail
cd "$(dirname "$0")/.."

azurite=3.35.0
if grep -qs "\"version\": \"$azurite\"" .servers/node_modules/azurite/package.json; then
    azurite=
fi
packages=()
ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || command -v initdb > /dev/null || packages+=(postgresql)
command -v chromium > /dev/null || packages+=(chromium)
[ -z "$azurite" ] || command -v npm > /dev/null || packages+=(nodejs npm)
if [ ${#packages[@]} -gt 0 ]; then
    scripts/apt-install.sh install-servers "${packages[@]}"
fi
if [ -n "$azurite" ]; then
    npm install --prefix .servers --no-save --no-audit --no-fund --loglevel=error "azurite@$azurite"
fi
