"""`python -m benchmarks.fleet_week`: a simulated week of a fleet, in which the product's own code decides.

Nodes fail, some are lemons, jobs of three priorities arrive, are preempted, and go on with fewer nodes. The simulation
knows the truth, and compares. `--page` writes docs/benchmarks-pipeline.md.
"""

import time

from .. import simulated
from .comparison import Row, compare, seed_figures
from .week import FAILURES_PER_NODE_DAY, Week

COMMAND = "benchmarks.fleet_week"
HEAD = """# A week of a fleet

{made}

**Simulated**: {failures:g} failures per 1,000 node-days, a few bad nodes, jobs of three priorities that are preempted
and go on with three quarters of their nodes, a damaged shard, a slow store, and a broken check. penstock's own
`suspects`, `Failures`, `goodput`, `usage` and plans decide and count. Proofs of suspicions are simulated too.

| | aim | figure | reached |
| --- | --- | --- | --- |"""
SEEDS = """
Least and most of {n} seeds; days until the watch drained, or named, each bad node:

| | least | most |
| --- | --- | --- |"""


def main() -> int:
    options = simulated.options_of(COMMAND, __doc__)
    options.add_argument("--nodes", type=int, default=1250)
    options.add_argument("--days", type=float, default=7.0)
    options.add_argument("--steps", type=int, default=40, help="steps whose order is computed")
    options.add_argument("--seeds", type=int, default=8, help="seeds of the second table, the first included")
    given = options.parse_args()
    made = simulated.made_by(options, given, ("nodes", "seed", "days", "steps", "seeds"))
    begun_s = time.process_time()
    week = Week(given.nodes, given.seed, given.days)
    week.run()
    rows = [simulated.row(*each.cells()) for each in compare(week, given.steps)]
    seconds = time.process_time() - begun_s
    last = Row(
        what="processor time of all this", aim="60 s", figure=f"{seconds:.0f} s", is_reached=seconds <= 60
    )
    rows.append(simulated.row(*last.cells()))
    figures = seed_figures(week)
    for seed in range(given.seed + 1, given.seed + given.seeds):
        week = Week(given.nodes, seed, given.days)
        week.run()
        for name, values in seed_figures(week).items():
            figures[name] += values
    seeds = [
        simulated.row(name, f"{round(min(each), 2):g}", f"{round(max(each), 2):g}")
        for name, each in figures.items()
    ]
    head = HEAD.format(made=made, failures=1000 * FAILURES_PER_NODE_DAY)
    spread = [*SEEDS.format(n=given.seeds).splitlines(), *seeds]
    return simulated.finish(COMMAND, given, [*head.splitlines(), *rows, *spread])


if __name__ == "__main__":
    raise SystemExit(main())
