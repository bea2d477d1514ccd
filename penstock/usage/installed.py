"""Count the GPUs of a Slurm cluster by `sinfo`, drained and powered-down ones included."""

import re
from collections.abc import Callable, Sequence

from loader.errors import Corrupt

COMMAND = ("sinfo", "--noheader", "--Node", "--all", "--format=%N|%G")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:([0-9]{1,6})")


def installed_gpus(answer: Callable[[Sequence[str]], str]) -> int:
    """Return the number of GPUs of all nodes. answer: as `accounted_jobs` takes it.

    Raises: EngineUnreachable; Corrupt for a line that is none of sinfo's.
    """
    nodes = dict[str, int]()
    for number, line in enumerate(answer(COMMAND).splitlines(), 1):
        name, bar, resources = line.strip().partition("|")
        if not bar:
            raise Corrupt(f"sinfo, line {number}: {line[:200]!r} is no node and its resources")
        nodes[name] = sum(map(int, _GPUS.findall(resources)))  # a node has a line per partition
    return sum(nodes.values())
