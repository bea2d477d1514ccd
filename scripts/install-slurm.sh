#!/usr/bin/env bash
# Slurm's daemons and commands from Debian's packages, for tests marked `slurm`, which start daemons of their own as
# any user. As root or with sudo. Daemons that the packages would start are kept from starting.
set -euo pipefail

if command -v slurmctld slurmd sbatch scontrol > /dev/null; then
    exit 0
fi
"$(dirname "$0")/apt-install.sh" install-slurm slurmctld slurmd slurm-client slurm-wlm-basic-plugins
