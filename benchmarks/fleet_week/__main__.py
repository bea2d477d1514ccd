"""`python -m benchmarks.fleet_week`: a simulated week of a fleet, in which the product's own code decides.

Nodes fail, some are lemons, jobs of three priorities arrive, are preempted, and go on with fewer nodes. The simulation
knows the truth, and compares. `--page` writes docs/benchmarks-pipeline.md.
"""

import time

from .. import simulated
from ..throughput import say
from .comparison import FOUND_DAYS, Row, compare, seed_figures
from .week import FAILURES_PER_NODE_DAY, Week

COMMAND = "benchmarks.fleet_week"
HEAD = """# A week of a fleet

{made}

**Simulated**: {nodes:,} nodes for {days:g} days, {failures:g} failures per 1,000 node-days, bad nodes, preempted jobs,
a damaged shard, a slow store, and a broken check. penstock's own code decides and counts.
"""
SEEDS = f"""
Least to most of {{n}} seeds, in days until each bad node was drained or named (aim: {FOUND_DAYS:g}): {{each}}."""


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
    compared = list(compare(week, given.steps))
    seconds = time.process_time() - begun_s
    compared.append(
        Row(what="- processor time", aim="60 s", figure=f"{seconds:.0f} s", is_reached=seconds <= 60)
    )
    for row in compared:
        say(str(row))
    rows = [str(row) for row in compared if row.is_shown]
    figures = seed_figures(week)
    for seed in range(given.seed + 1, given.seed + given.seeds):
        week = Week(given.nodes, seed, given.days)
        week.run()
        for name, values in seed_figures(week).items():
            figures[name] += values
    each = "; ".join(
        f"{name} {round(min(values), 2):g} to {round(max(values), 2):g}" for name, values in figures.items()
    )
    head = HEAD.format(made=made, nodes=given.nodes, days=given.days, failures=1000 * FAILURES_PER_NODE_DAY)
    spread = SEEDS.format(n=given.seeds, each=each).splitlines()
    return simulated.finish(COMMAND, given, [*head.splitlines(), "", *rows, *spread])


if __name__ == "__main__":
    raise SystemExit(main())
