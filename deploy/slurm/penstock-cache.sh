#!/bin/sh
# Prolog: starts the server of this node's pages, unless it runs, for loader.NodeCache(path=..., peers=["node1:7070", ...]).
# It outlives the job, so that the next one finds the pages. Without it, `run.node_cache` starts servers that end with the job.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin # a Prolog has none, and setsid looks for runuser in it
set -a
. /etc/penstock/environment # PENSTOCK_CACHE_TOKEN
set +a
# As the user of the trainings: a cache folder belongs to one user. Slurm kills the process group of a Prolog that has ended:
# setsid ends once the server has left that group.
setsid sh -c 'runuser -u penstock -- /opt/penstock/.venv/bin/penstock cache serve --path /nvme/penstock \
    --listen 0.0.0.0:7070 --address "$SLURMD_NODENAME:7070" >>/var/log/penstock-cache.log 2>&1 </dev/null &'
# It ends at once with 2 if a server has the folder: a Prolog that fails would drain the node.
exit 0
