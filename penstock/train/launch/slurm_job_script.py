"""The batch script of a run on Slurm: its ranks by srun, and back to the queue when they stop in time.

Plain sh: nothing is imported between the end of the ranks and the request to requeue. Each odd line answers a trap
of docs/decisions/running.md.
"""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from ..code.snapshot import rank_command
from ..run import AGAIN
from ..run_spec import RunSpec
from . import script_calls
from .node_start import environment
from .run_log import SPANS

LOST_S = 120
"""Seconds that srun gets to end after all ranks of the first node have, if one failed: several times KillWait."""
CHECK_S = 10
QUIET_S = 120
"""Seconds without a rank after which the log and `penstock train why` say so."""
HOPELESS_S = 600
"""Seconds without a rank after which srun is ended, and the job goes back to the queue: other nodes may begin ranks."""
REFUSED_S = 10
"""Seconds until the next start after one that no rank reached; n times as long after n in a row, at most 60 s."""
REFUSALS = 8
"""Starts in a row that no rank reached, after which the job goes back to the queue."""

_RANK = """\
if [ "$SLURMD_NODENAME" = "$PENSTOCK_SCRIPT_NODE" ]; then
    echo $$ > "$PENSTOCK_FOLDER/rank-$SLURM_PROCID"
    : > "$PENSTOCK_FOLDER/reached"
fi
{environment}{exports}export RANK="$SLURM_PROCID" WORLD_SIZE="$SLURM_NTASKS"
export LOCAL_RANK="$SLURM_LOCALID" LOCAL_WORLD_SIZE={ranks}
requeue() {{ # as after a lost node; Slurm fails a job whose script was killed
    echo "penstock: the batch script was killed; the job goes back to the queue" >> {log}
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        scontrol requeue "$SLURM_JOB_ID" && break
        sleep 1 # the controller does not answer, or does not know yet that the script has ended
    done
    rm -rf "$PENSTOCK_FOLDER"
}}
stop() {{
    kill -TERM "$rank"
    if [ "$SLURMD_NODENAME:$SLURM_LOCALID" = "$PENSTOCK_SCRIPT_NODE:0" ]; then
        kill -0 "$PENSTOCK_SCRIPT_PID" 2> /dev/null || requeue > /dev/null 2>&1 &
    fi
}}
trap stop TERM
trap 'kill -USR1 "$rank"' USR1
"$@" &
rank=$!
wait "$rank"
status=$?
while kill -0 "$rank" 2> /dev/null; do # a signal had ended the wait, not the rank
    wait "$rank"
    status=$?
done
if [ "$status" = 0 ] || [ "$status" = {again} ]; then rm -f "$PENSTOCK_FOLDER/rank-$SLURM_PROCID"; fi
if [ "$status" = {again} ]; then # 0, because srun kills all ranks at once if one ends otherwise
    if [ -d "$PENSTOCK_FOLDER" ]; then : > "$PENSTOCK_FOLDER/stopped"; fi
    exit 0
fi
exit "$status"
"""

_SCRIPT = """\
#!/bin/sh
# A start of a training run of penstock, see docs/decisions/running.md.
unset SLURM_EXPORT_ENV SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK # else srun takes them for options
PENSTOCK_FOLDER=$(mktemp -d) || exit 1
export PENSTOCK_STEP_FILE="$PENSTOCK_FOLDER/step" # of the first rank
export PENSTOCK_FOLDER PENSTOCK_SCRIPT_NODE="$SLURMD_NODENAME" PENSTOCK_SCRIPT_PID=$$
noting=
trap '[ -z "$noting" ] || wait "$noting"; rm -rf "$PENSTOCK_FOLDER"' EXIT
stopping=0
trap 'stopping=1; note_cancel & noting=$!' TERM
trap '[ -z "$srun" ] || kill -USR1 "$srun"' USR1 # a person's, to the script too: it ends no script
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
layout=--ntasks-per-node={ranks}
case $SLURM_TOPOLOGY_ADDR in *.*) # switches and node: neighbouring ranks belong below one switch
    nodes=$(srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mpi=none \\
        sh -c 'echo "$SLURM_TOPOLOGY_ADDR $SLURMD_NODENAME"' | sort -V | sed 's/.* //')
    if [ "$(echo "$nodes" | wc -l)" = "$SLURM_JOB_NUM_NODES" ]; then
        export SLURM_HOSTFILE="$PENSTOCK_FOLDER/nodes"
        for node in $nodes; do yes "$node" | head -n {ranks}; done > "$SLURM_HOSTFILE"
        first=$(head -n 1 "$SLURM_HOSTFILE")
        layout=--distribution=arbitrary
    fi ;;
esac
address=$(scontrol -o show node "$first" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
export MASTER_ADDR="${{address:-$first}}"

superseded() {{ # a later job of this name waits: it has a changed file of the run, and begins when this one ends
    for job in $(squeue -h -n {name} -u "$(id -un)" -t PENDING -o %A); do
        if [ "$job" -gt "$SLURM_JOB_ID" ]; then
            echo "penstock: Slurm job $job has a changed file of the run, and goes on"
            return 0
        fi
    done 2> /dev/null
    return 1
}}

requeue() {{ # a job that a person cancelled is COMPLETING here, and so is one that Slurm requeues by itself
    if superseded; then exit 0; fi
    refusals=0
    case $(scontrol -o show job "$SLURM_JOB_ID") in # the accounting has REQUEUED after a preemption with a grace, too
        *' PreemptTime='[0-9]*) note preempted_us ;;
    esac
    while [ "$refusals" -lt 30 ]; do
        case $(squeue -h -j "$SLURM_JOB_ID" -o %T:%r) in
            RUNNING:* | *:TimeLimit) scontrol requeue "$SLURM_JOB_ID" && exit {again} || refusals=$((refusals + 1)) ;;
            ?*) exit {again} ;;
        esac
        sleep 2 # the controller does not answer
    done
    echo "penstock: Slurm does not requeue the job; submit the run again"
    exit {again}
}}

watch_srun() {{ # it waits for ever for ranks of a node that lost its power and is back before it is DOWN
    trap '' TERM USR1 # Slurm signals all processes of the script
    checks=0 waited=0 reached=0
    while [ "$checks" -lt {checks} ] && [ "$waited" -lt {hopeless_s} ]; do
        sleep {check_s}
        kill -0 $$ 2> /dev/null || exit # the script was killed
        checks=$((checks + 1))
        for file in "$PENSTOCK_FOLDER"/rank-*; do # of ranks of this node that run, or have failed
            if [ ! -e "$file" ] || kill -0 "$(cat "$file")" 2> /dev/null; then checks=0; fi
        done
        if [ "$reached" = 0 ] && [ -e "$PENSTOCK_FOLDER/reached" ]; then
            reached=1
            note ranks_us
        elif [ "$reached" = 0 ]; then
            waited=$((waited + {check_s}))
            if [ "$waited" = {quiet_s} ]; then
                echo "penstock: srun has started no rank for {quiet_s} s"
                note no_rank_us
            fi
        fi
    done
    if [ "$reached" = 0 ]; then
        echo "penstock: srun has started no rank for {hopeless_s} s; the job goes back to the queue"
    else
        echo "penstock: the ranks of this node failed {lost_s} s ago, and srun still waits for others"
    fi
    : > "$PENSTOCK_FOLDER/lost"
    kill "$1"
}}

note() {{ # a line of this start for `penstock train why`
    printf '\n{{"%s": %s000000}}\n' "$1" "$(date +%s)" >> {spans}
}}

finish() {{ # the run is over: `penstock train wait` reads its exit status, and people get an alert
    printf '\n{{"exit_us": %s000000, "status": %s}}\n' "$(date +%s)" "$1" >> {spans}
    {environment_line}{python} -P -m {calls} ended {record} {run} "$1"
    exit "$1"
}}

next_start() {{
    {environment_line}{python} -P -m {calls} next "$PENSTOCK_FOLDER/failures" {record} {run} {log} "$size" "$status" \\
        "$PENSTOCK_ATTEMPT"
}}

note_cancel() {{ # a controller that is killed soon after forgets a cancel, and starts the job again
    trap '' TERM USR1
    for _ in 1 2 3; do
        job=$(scontrol -o show job "$SLURM_JOB_ID") && break
        sleep 2 # the controller does not answer
    done
    case $job in # COMPLETING hides CANCELLED; a requeue counts a restart, the walltime is a reason
        *' JobState=C'*' Reason=None '*" Restarts=${{SLURM_RESTART_COUNT:-0}} "*' PreemptTime=None '*)
            {environment_line}{python} -P -m {calls} cancel {record} {run} ;;
    esac
}}

begun=0 refused=0 without_python=
while :; do
    if superseded; then exit 0; fi
    rm -f "$PENSTOCK_FOLDER"/stopped "$PENSTOCK_FOLDER"/step "$PENSTOCK_FOLDER"/reached "$PENSTOCK_FOLDER"/rank-*
    export MASTER_PORT=$((20000 + $(od -An -N2 -tu2 /dev/urandom) % 12000)) # the system gives out higher ones
    size=$(stat -c %s {log} || echo 0)
    starts=$((${{SLURM_RESTART_COUNT:-0}} + begun + 1)) # unless the folder of logs is full
    # It begins with a line's end: a full disk may have cut the last line off.
    if printf '\\n{{"begun_us": %s000000, "log": %s}}\\n' "$(date +%s)" "$size" >> {spans}; then
        starts=$(grep -c '^{{"begun_us": [0-9]*, "log": [0-9]*}}$' {spans})
    fi
    export PENSTOCK_ATTEMPT=$((starts - 1)) # of earlier jobs of the run, too
    srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks=$((SLURM_JOB_NUM_NODES * {ranks})) "$layout" \\
        --cpus-per-task={cpus} --kill-on-bad-exit=1 --mpi=none --label {srun_options}\\
        sh -c {rank} rank {command} &
    srun=$!
    watch_srun "$srun" &
    watch=$!
    wait "$srun"
    status=$?
    while kill -0 "$srun" 2> /dev/null; do
        wait "$srun"
        status=$?
    done
    kill -KILL "$watch" 2> /dev/null
    srun=
    note srun_ended_us # what follows is back-off, for `penstock train goodput`
    if [ -e "$PENSTOCK_FOLDER/stopped" ] || [ -e "$PENSTOCK_FOLDER/lost" ]; then requeue; fi
    if [ "$status" = 0 ]; then
        if superseded; then exit 0; fi
        finish 0
    fi
    if [ "$stopping" = 1 ]; then requeue; fi
    if [ ! -e "$PENSTOCK_FOLDER/reached" ]; then # Slurm's failure, not the run's
        note no_rank_us
        refused=$((refused + 1))
        echo "penstock: srun ended with status $status and began no rank, $refused times in a row"
        if [ "$refused" -ge {refusals} ]; then requeue; fi
        wait_s=$((refused < 6 ? {refused_s} * refused : 60))
    else
        refused=0
        wait_s=$(next_start)
        if [ $? = {over} ]; then finish "$status"; fi
        case $wait_s in
            '' | *[!0-9]*) # Python did not start: its disk may come back
                wait_s=60
                without_python="$without_python $status"
                case $without_python in *" $status "*" $status")
                    echo "penstock: the ranks ended with $status twice, and Python did not start: see venv; it is over"
                    finish "$status" ;;
                esac
                without_python="$without_python " ;;
            *) without_python= ;;
        esac
    fi
    end=$(squeue -h -j "$SLURM_JOB_ID" -o %e) && end=$(date -d "${{end:-none}}" +%s 2> /dev/null)
    if [ -n "$end" ] && [ $((end - $(date +%s))) -lt $((wait_s + {grace_s} + 90)) ]; then
        requeue # the signal before the end of the walltime comes up to 60 s early, and would reach no rank
    fi
    echo "penstock: failed with status $status; it restarts in $wait_s s"
    sleep "$wait_s" &
    wait $!
    if [ "$stopping" = 1 ]; then requeue; fi
    begun=$((begun + 1))
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings of a cluster's nodes for each rank."""

    environment: str
    """Shell file of NAME=value lines on the nodes; "": none."""
    python: str
    """Path of Python on the nodes; its folder comes first in PATH."""
    cpus: int
    """Processors per rank."""
    log: str
    """File that gets the output of all starts, on every node."""


def batch_script(spec: RunSpec, settings: NodeSettings, name: str) -> str:
    """Return the script for sbatch. name: of the job."""
    environment_line = ""
    if settings.environment:
        environment_line = f"set -a; . {shlex.quote(settings.environment)}; set +a\n"
    path_line = f'export PATH={shlex.quote(os.path.dirname(settings.python))}:"$PATH"\n'
    rank_script = _RANK.format(
        environment=environment_line,
        exports=path_line + _exports(environment(spec, {})),
        ranks=spec.ranks_per_node,
        again=AGAIN,
        log=shlex.quote(settings.log),
    )
    return _SCRIPT.format(
        again=AGAIN,
        lost_s=LOST_S,
        checks=LOST_S // CHECK_S,
        check_s=CHECK_S,
        ranks=spec.ranks_per_node,
        cpus=settings.cpus,
        grace_s=spec.grace_s,
        log=shlex.quote(settings.log),
        spans=shlex.quote(f"{settings.log}{SPANS}"),
        # Quoted as a whole: `sh -c` of each rank takes it as one word.
        rank=shlex.quote(rank_script),
        command=shlex.join(rank_command(spec, settings.python)),
        srun_options=_srun_options(spec),
        # On the line of the command that it precedes.
        environment_line=environment_line.replace("\n", "; "),
        python=shlex.quote(settings.python),
        calls=script_calls.__name__,
        quiet_s=QUIET_S,
        hopeless_s=HOPELESS_S,
        refusals=REFUSALS,
        refused_s=REFUSED_S,
        over=script_calls.OVER,
        record=shlex.quote(spec.record),
        run=shlex.quote(spec.run),
        name=shlex.quote(name),
    )


_MOUNTS = "--container-mounts="


def _srun_options(spec: RunSpec) -> str:
    """Return the run's own options of srun as quoted words, with a space after each."""
    words = [shlex.quote(option) for option in spec.srun if not option.startswith(_MOUNTS)]
    mounts = [option.removeprefix(_MOUNTS) for option in spec.srun if option.startswith(_MOUNTS)]
    quoted = [shlex.quote(mount) for mount in mounts]
    if any(option.startswith("--container-image=") for option in spec.srun):
        # Ranks leave files in the script's folder; its parent is there on every node.
        quoted.append('"${PENSTOCK_FOLDER%/*}:${PENSTOCK_FOLDER%/*}"')
    if quoted:
        words.append(_MOUNTS + ",".join(quoted))
    return "".join(f"{word} " for word in words)


def _exports(variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
