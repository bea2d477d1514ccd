#!/usr/bin/env bash
# The servers that tests marked `server` talk to and pip does not bring: Postgres from
# Debian, and Azurite, into .servers/ of the checkout; Debian's promtool, which judges alert rules;
# and Debian's Chromium, which looks at pages,
# with axe-core (MPL-2.0), which checks their accessibility.
# Needs npm, or apt-get to bring it.
set -euo pipefail
cd "$(dirname "$0")/.."

# npm removes the packages that a command does not name: one command names all of them.
node_packages=(azurite@3.35.0 axe-core@4.14.1)
has_node_packages=yes
for package in "${node_packages[@]}"; do
    description=.servers/node_modules/${package%@*}/package.json
    grep -qs "\"version\": \"${package#*@}\"" "$description" || has_node_packages=
done
packages=()
ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || command -v initdb > /dev/null || packages+=(postgresql)
command -v chromium > /dev/null || packages+=(chromium)
command -v promtool > /dev/null || packages+=(prometheus)
[ -n "$has_node_packages" ] || command -v npm > /dev/null || packages+=(nodejs npm)
if [ ${#packages[@]} -gt 0 ]; then
    scripts/apt-install.sh install-servers "${packages[@]}"
fi
if [ -z "$has_node_packages" ]; then
    npm install --prefix .servers --no-save --no-audit --no-fund --loglevel=error "${node_packages[@]}"
fi
