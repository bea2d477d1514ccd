"""`python -m benchmarks.fleet_week`: a simulated week of a fleet, in which the product's own code decides.

Nodes fail, some are lemons, jobs of three priorities arrive, are preempted, and go on with fewer nodes. The simulation
knows the truth, and compares. `--page` writes docs/benchmarks-pipeline.md.
"""

import argparse
import os
import platform
import time
from pathlib import Path

from .. import sections
from ..throughput import say
from .comparison import Row, compare
from .week import FAILURES_PER_NODE_DAY, Week

HEAD = """# A week of a fleet

Made by `{command}` on {machine}. {note}

**Simulated**: nodes fail ({failures:g} per 1,000 node-days), a few are lemons, jobs of three priorities arrive, are
preempted with a checkpoint, and go on with three quarters of their nodes. A shard is damaged for six hours, the store
is slow for two, and a check fails on every node for six. The simulation writes accounting lines, events and windows as
Slurm and the ranks do. These decide and count: `penstock.nodes.suspects` (suspects, caps), the launcher's `Failures`,
`goodput`, `usage`, and the loader's plan.

| | aim | figure | reached |
| --- | --- | --- | --- |"""
TAIL = """
- A crash accuses all nodes of its gang alike, and a run begins again on the same nodes. So a node that crashes its gang
  is a suspect after two gangs whose runs have gone on elsewhere.
- The proofs are played: 2,000 reads of the ranges, and checks that find a node that crashes in one of four tries. A
  suspect that passes them stays in service.
- A killed start's last minute is unknown: its last window ended before."""


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.fleet_week", description=__doc__)
    options.add_argument("--nodes", type=int, default=1250)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--days", type=float, default=7.0)
    options.add_argument("--steps", type=int, default=40, help="steps whose order is computed")
    options.add_argument(
        "--page", action="store_true", help="write the section of docs/benchmarks-pipeline.md"
    )
    options.add_argument("--note", default="", help="a sentence for the page's head, about the machine")
    options.add_argument("--out", type=Path, help="write here")
    given = options.parse_args()
    changed = [
        f"--{name} {getattr(given, name):g}"
        for name in ("nodes", "seed", "days", "steps")
        if getattr(given, name) != options.get_default(name)
    ]
    command = " ".join(["python -m benchmarks.fleet_week", *changed])
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    begun_s = time.process_time()
    week = Week(given.nodes, given.seed, given.days)
    week.run()
    rows = []
    for row in compare(week, given.steps):
        say(str(row))
        rows.append(row)
    seconds = time.process_time() - begun_s
    rows.append(
        Row(
            what="processor time of all this", aim="60 s", figure=f"{seconds:.0f} s", is_reached=seconds <= 60
        )
    )
    head = HEAD.format(
        command=command, machine=machine, note=given.note, failures=1000 * FAILURES_PER_NODE_DAY
    )
    text = (
        "\n".join([*(line.rstrip() for line in head.splitlines()), *map(str, rows), *TAIL.splitlines()])
        + "\n"
    )
    if given.page or given.out:
        sections.write("benchmarks.fleet_week", text, given.out)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
