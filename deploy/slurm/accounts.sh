#!/bin/sh
# Accounts and QOS of two teams with 64 GPUs each, as an administrator of slurmdbd. Running it again changes nothing. Add users:
#   sacctmgr -i add user ann account=team-a qos=low,normal,high defaultqos=normal
set -eu

# sacctmgr ends with 1 if there is nothing to add.
add() {
    sacctmgr -i add "$@" || sacctmgr -n show "$1" "$2" | grep -q .
}

# A priority of a run's file is a QOS. GraceTime is the least `grace_s` that a run of it may count on, in seconds.
add qos low
sacctmgr -i modify qos low set priority=1 preemptmode=requeue gracetime=180
sacctmgr -i modify qos normal set priority=100 preempt=low preemptmode=requeue gracetime=180
add qos high
sacctmgr -i modify qos high set priority=1000 preempt=low,normal MaxTRESPerUser=gres/gpu=64

# GrpTRES is a team's quota, whatever the QOS.
for team in team-a team-b; do
    add account "$team" description="$team" organization=penstock
    sacctmgr -i modify account "$team" set GrpTRES=gres/gpu=64 qos=low,normal,high defaultqos=normal fairshare=50
done
