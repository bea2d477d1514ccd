"""Script of an element of a Slurm array: it begins the runner, and begins it again where it dies.

It holds names alone: secrets come from the environment file of the node that it runs on.
"""

import shlex
from collections.abc import Sequence

BEGUN = 8
"""Starts of the runner in an element, at most: a runner that the kernel killed costs no turn in Slurm's queue."""

_SCRIPT = """\
#!/bin/sh
# An element of a penstock job. It ends well where its runner does; told to end, it begins no further runner.
# Anybody may write to the folder that it runs in: nothing there is imported.
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
