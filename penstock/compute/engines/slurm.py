"""Slurm as an engine: an attempt at a job is arrays of one name, and each element begins the job's runner.

The name is the handle. The store records what is done; Slurm only answers whether anything still waits or runs.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from loader.errors import InvalidCluster

from .engine import AttemptStatus
from .slurm_queue import ENDED, RUNNING, WAITING, SlurmQueue

BEGUN = 8
"""Starts of the runner in an element, at most: a runner that the kernel killed costs no turn in Slurm's queue."""

_SCRIPT = """\
#!/bin/sh
# An element of a penstock job. It ends well where its runner does; told to end, it begins no further runner.
# Other users may write to the folder that it runs in: nothing there is imported.
export PYTHONSAFEPATH=1
{environment}element=$(({first} + SLURM_ARRAY_TASK_ID))
told=0
trap 'told=1; kill -TERM "$runner"' TERM INT
for begun in {begun}; do
    [ "$told" = 0 ] || exit 143
    {runner} --element "$element" --elements {elements} &
    runner=$!
    [ "$told" = 0 ] || kill -TERM "$runner" # told just before it began
    wait "$runner"
    status=$?
    while kill -0 "$runner" 2> /dev/null; do # a signal had ended the wait, not the runner
        wait "$runner"
        status=$?
    done
    case $status in {final}) exit "$status" ;; esac
    echo "runner of element $element, begun $begun times, ended with $status on $SLURMD_NODENAME" >&2
    sleep 1
done
exit "$status"
"""


def element_script(
    runner: Sequence[str], *, environment: str, first: int, elements: int, final: Sequence[int] = (0,)
) -> str:
    """Return the text that sbatch gets.

    runner: its command, without element and elements.
    environment: file of NAME=value lines on the nodes, for a shell; "" without one.
    first: the number that the array's element 0 stands for.
    elements: number of elements of all arrays of the attempt.
    final: exit codes after which nothing would change, 0 among them.
    """
    return _SCRIPT.format(
        environment=f"set -a\n. {shlex.quote(environment)}\nset +a\n" if environment else "",
        first=first,
        begun=" ".join(str(n) for n in range(1, BEGUN + 1)),
        runner=shlex.join(runner),
        elements=elements,
        final="|".join(str(code) for code in final),
    )


ELEMENTS_PER_SLOT = 4
"""Blocks differ in cost: who is done with an element's share takes another one."""
NOTICE_S = 120
"""A runner gets its signal this long before its time limit, in s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCluster:
    """Description of a Slurm cluster, and of what a runner gets there."""

    slots: int
    """Runners at once, at most."""
    cpus: int = 1
    """Processors of a runner."""
    memory_bytes: int = 0
    """Memory of a runner; 0: as the queue gives."""
    gpus: int = 0
    """GPUs of a runner."""
    gpu_type: str = ""
    """Kind of GPU in Slurm's words; "": any."""
    scratch_bytes: int = 0
    """Space on the node's own disk; 0: unchecked."""
    limit_s: int = 0
    """Time limit of an element, in s; 0: the queue's."""
    queue: str = ""
    """Partition; "": Slurm's default."""
    account: str = ""
    """Account that pays; "": Slurm's default."""
    environment: str = ""
    """File of NAME=value lines on the nodes, read by a shell; "": none. Secrets stand here."""
    logs: str = ""
    """Folder that nodes and login node share, for what elements write; "": nothing is kept."""
    submit: Sequence[str] = ()
    """Command that takes one line for a shell, such as ["ssh", "login1"]; empty: Slurm's commands of this machine."""
    array_max: int = 1000
    """Elements of an array, at most: the cluster's MaxArraySize less 1."""

    def __post_init__(self) -> None:
        """Check the numbers. Raises: InvalidCluster."""
        least = {"slots": 1, "cpus": 1, "array_max": 1}
        for name in ("slots", "cpus", "array_max", "memory_bytes", "gpus", "scratch_bytes", "limit_s"):
            value = getattr(self, name)
            if type(value) is not int or value < least.get(name, 0):
                raise InvalidCluster(
                    f"{name} = {value!r}; accepted: a whole number, {least.get(name, 0)} or more"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """Part of an attempt that Slurm takes at once."""

    first: int
    """Number of its first element in the attempt."""
    size: int
    """Number of its elements."""
    at_once: int
    """Elements that may run at the same time."""


class SlurmEngine:
    """Attempts on one cluster, by name: 'pk-<job>-<token>-<attempt>'."""

    poll_s = 5.0

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster
        self._queue = SlurmQueue(cluster.submit)

    def submit(self, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int] = (0,)) -> None:
        """Place an attempt; who is killed in the middle has placed some of its arrays, which `find` finds.

        runner: command that gets --element and --elements; it computes blocks element, element + elements ...
        final: exit codes of the runner after which it is not begun again.

        Raises: EngineUnreachable, after which arrays may have been placed; InvalidCluster if Slurm refuses.
        """
        arrays = arrays_of(n_blocks, self._cluster.slots, self._cluster.array_max)
        for array in arrays:
            script = element_script(
                runner,
                environment=self._cluster.environment,
                first=array.first,
                elements=sum(one.size for one in arrays),
                final=final,
            )
            self._queue.submit(script, options_of(self._cluster, name, array))

    def find(self, name: str) -> bool:
        """Return whether the controller has an attempt of this name. Raises: EngineUnreachable."""
        return bool(self._queue.elements(name).states)

    def status(self, name: str) -> AttemptStatus:
        """Return the state of an attempt that was placed.

        Elements that Slurm holds after a failed launch may begin again: they would wait until a person released them.

        Raises: EngineUnreachable, which is no end.
        """
        elements = self._queue.elements(name)
        self._queue.release(elements.held)
        waiting, running = elements.count(WAITING), elements.count(RUNNING)
        known = waiting + running + elements.count(ENDED) == sum(elements.states.values())
        return AttemptStatus(
            state="running" if running else "waiting" if waiting else "ended" if known else "unknown",
            reason=elements.reason,
            waiting=waiting,
            running=running,
            place=elements.place,
        )

    def cancel(self, name: str) -> None:
        """Cancel an attempt, and return when its last process has ended. Raises: EngineUnreachable."""
        self._queue.cancel(name)

    def logs(self, name: str, element: int) -> str:
        """Return the last 64 KiB that an element wrote, "" without any. Raises: EngineUnreachable."""
        index = element % self._cluster.array_max
        return self._queue.tail(_log(self._cluster, name, element - index, str(index)))

    def close(self) -> None:
        """Leave attempts to Slurm: they go on."""


def arrays_of(n_blocks: int, slots: int, array_max: int) -> list[Array]:
    """Return the arrays of an attempt: four elements per slot, and never more elements than blocks."""
    n_elements = min(n_blocks, ELEMENTS_PER_SLOT * slots)
    at_once = min(slots, n_elements)
    arrays = []
    for first in range(0, n_elements, array_max):
        end = min(first + array_max, n_elements)
        share = at_once * end // n_elements - at_once * first // n_elements
        arrays.append(Array(first=first, size=end - first, at_once=max(1, share)))
    return arrays


def options_of(cluster: SlurmCluster, name: str, array: Array) -> list[str]:
    """Return the options of sbatch. The environment of who submits stays away from Slurm, which would keep it."""
    options = {
        "job-name": name,
        "array": f"0-{array.size - 1}%{array.at_once}",
        "export": "NONE",
        "output": _log(cluster, name, array.first, "%a") if cluster.logs else "/dev/null",
        "open-mode": "append",
        "chdir": "/tmp",
        "signal": f"B:TERM@{NOTICE_S}",
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(cluster.cpus),
        "mem": _mebibytes(cluster.memory_bytes),
        "tmp": _mebibytes(cluster.scratch_bytes),
        "gres": ":".join(filter(None, ["gpu", cluster.gpu_type, str(cluster.gpus)])) if cluster.gpus else "",
        "time": f"0:{cluster.limit_s}" if cluster.limit_s else "",
        "partition": cluster.queue,
        "account": cluster.account,
    }
    return ["--requeue", *(f"--{key}={value}" for key, value in options.items() if value)]


def _log(cluster: SlurmCluster, name: str, first: int, index: str) -> str:
    return f"{cluster.logs}/{name}-{first}+{index}.txt"


def _mebibytes(n_bytes: int) -> str:
    return f"{-(-n_bytes // 2**20)}M" if n_bytes else ""
