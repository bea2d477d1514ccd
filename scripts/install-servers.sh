#!/usr/bin/env bash
# The servers that tests marked `server` talk to and pip does not bring: Postgres from
# Debian, and Azurite, into .servers/ of the checkout; and Debian's Chromium, which looks at pages.
# Needs npm, or apt-get to bring it.
set -euo pipefail
cd "$(dirname "$0")/.."

azurite=3.35.0
if ! ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 && ! command -v initdb > /dev/null; then
    scripts/apt-install.sh install-servers postgresql
fi
if ! command -v chromium > /dev/null; then
    scripts/apt-install.sh install-servers chromium
fi
if [ "$(cat .servers/node_modules/azurite/package.json 2> /dev/null | grep -c "\"version\": \"$azurite\"")" = 1 ]; then
    exit 0
fi
if ! command -v npm > /dev/null; then
    scripts/apt-install.sh install-servers nodejs npm
fi
npm install --prefix .servers --no-save --no-audit --no-fund --loglevel=error "azurite@$azurite"
