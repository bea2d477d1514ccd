#!/bin/sh
# Prolog and HealthCheckProgram: run the checks of this node, for the watcher to judge.
#
# It always ends with 0. Slurm drains a node whose Prolog fails, and slurmd of some releases does not register while its
# HealthCheckProgram fails: a check that begins to fail everywhere would take the whole cluster.
set -a
. /etc/penstock/environment # PENSTOCK_ROOT, and the credentials of its store
set +a
# Slurm kills a HealthCheckProgram after 60 s.
timeout 50 /opt/penstock/.venv/bin/penstock node check --root "$PENSTOCK_ROOT" --cluster /etc/penstock/cluster.toml || true
exit 0
