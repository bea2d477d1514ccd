"""Near checkpoints of four nodes beside a training's steps, and what the steps wait for."""

import json
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from ..contest import ROOT
from .cluster import Node

NODES = 4
NBYTES = 2**28
"""Bytes of a rank's state. 1 GiB needs 8 GiB of memory and 24 GiB of disk."""
LIMIT_BYTES = 2**24


class NearFigures(NamedTuple):
    """Seconds of steps of 50 ms: the median alone, and the slowest of each kind, of all ranks: the rounds' median."""

    median_s: float
    alone_s: float
    beside_near_s: float
    beside_hashing_s: float
    """Beside another program's threads of the same low priority: what the machine's scheduler costs."""
    beside_root_s: float
    near_copy_s: float
    """Slowest call that copies the state for a near checkpoint."""
    root_copy_s: float
    """The same for a checkpoint in a root, which ends there the one before."""
    saved: int
    skipped: int
    failed: int


def near_save_figures(folder: Path, nbytes: int = NBYTES) -> NearFigures:
    """Run the ranks, and return the figures. nbytes: of each rank's state."""
    folder.mkdir()
    nodes = [Node(folder / f"node{number}", LIMIT_BYTES) for number in range(NODES)]
    with ExitStack() as stack:
        for node in nodes:
            stack.callback(node.kill)
            node.serve()
        settings: dict[str, Any] = {
            "ranks": NODES,
            "meet": str(folder / "meet"),
            "root": str(folder / "root"),
            "limit_bytes": LIMIT_BYTES,
            "nbytes": nbytes,
            "peers": [node.address for node in nodes],
        }
        for number, node in enumerate(nodes):
            own = {"rank": number, "folder": str(node.folder)}
            command = [sys.executable, "-m", "benchmarks.cluster.near_rank", json.dumps({**settings, **own})]
            node.rank = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        ranks = [node.answer() for node in nodes]
    return NearFigures(
        median_s=statistics.median(ranks[0]["alone"][0]),
        alone_s=_slowest(ranks, "alone"),
        beside_near_s=_slowest(ranks, "beside_near"),
        beside_hashing_s=_slowest(ranks, "beside_hashing"),
        beside_root_s=_slowest(ranks, "beside_root"),
        near_copy_s=max(max(rank["near_copies"]) for rank in ranks),
        root_copy_s=max(max(rank["root_copies"]) for rank in ranks),
        saved=ranks[0]["saved"],
        skipped=ranks[0]["skipped"],
        failed=ranks[0]["failed"],
    )


def _slowest(ranks: list[dict[str, Any]], name: str) -> float:
    """Return the slowest step of all ranks in a round: the rounds' median."""
    rounds = range(len(ranks[0][name]))
    slowest_s = [max(max(rank[name][number]) for rank in ranks) for number in rounds]
    print(f"slowest steps, {name}, s:", ", ".join(f"{seconds:.3f}" for seconds in slowest_s))
    return statistics.median(slowest_s)
