#!/usr/bin/env bash
# timed.sh NAME COMMAND...: runs the command and says how long it took, with its exit status.
set -uo pipefail
name=$1
shift
"$@"
status=$?
echo "== $name: $SECONDS s (exit $status)"
exit $status
