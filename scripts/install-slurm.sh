#!/usr/bin/env bash
# Slurm's daemons and commands from Debian's packages, for tests marked `slurm`, which start daemons of their own as
# any user, with slurmdbd over a MariaDB of their own. As root or with sudo. mariadb-server-core starts no daemon.
set -euo pipefail

if command -v slurmctld slurmd sbatch scontrol slurmdbd mariadbd mariadb-install-db my_print_defaults > /dev/null; then
    exit 0
fi
"$(dirname "$0")/apt-install.sh" install-slurm slurmctld slurmd slurm-client slurm-wlm-basic-plugins \
    slurmdbd mariadb-server-core mariadb-client-core
