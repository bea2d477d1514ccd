"""`python -m benchmarks.fleet_start`: 10,000 ranks begin at once against a store that throttles.

Requests are counted of real ranks; time is simulated. `--page` writes docs/benchmarks-stores.md.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.train.start_requests import READS_PER_S, STARTS_S, StartRequests

from .. import simulated
from .counts import RankRequests, counted, make_root
from .simulation import Case, Fleet, Outcome, Simulation

COMMAND = "benchmarks.fleet_start"
PUBLISHES = (8, 31, 120)
USUAL = 31
"""Publishes of the root whose counts are simulated."""
MANY_TABLES = 27
"""Tables of shards after 10,000 publishes (`python -m benchmarks.scale`): too large to travel with a plan."""
NOW = "plan from the first rank"
CASES = (
    Case(name="each rank opens the root, budget 60 s", opens="each", is_patient=False),
    Case(name="the same, budget 600 s", opens="each"),
    Case(name="the same, 16 partitions of the prefix", opens="each", partitions=16),
    Case(name="one rank per node opens, budget 60 s", opens="node", is_patient=False),
    Case(name=f"**{NOW}**", opens="first"),
    Case(name="the same, each makes batches ahead once it has its first", opens="first", ahead="retried"),
    Case(name="the same, with reads that are tried once", opens="first", ahead="once"),
)
HEAD = """# A fleet that begins again

{made}

**Counted**: requests of a real rank against a store that records them, {batch} samples a batch, in their own shards.

| publishes | plan | before its first index | until its first batch |
| --- | --- | --- | --- |"""
SIMULATED = """
**Simulated** from the counts at {publishes} publishes: the loader's own `RetryBudget` and `Limiter` in virtual time. A
prefix answers in 15 to 40 ms, and sends 503 above its rate. Ranks start within {starts:g} s. A spent budget ends the
gang.

| | ranks, reads/s | first batch everywhere | lost ranks | 503 |
| --- | --- | --- | --- | --- |"""
TAIL = """
The aims were 35 s for 10,000 ranks, 5 s for 1,000, and no lost rank. Until a rank asks for its second batch, it makes
nothing ahead, and a throttled read has 600 s. Above 1 MiB of tables of shards, about 5,000 shards, use sixteen
partitions of the prefix, or a copy on the nodes."""


def main() -> int:
    options = simulated.options_of(COMMAND, __doc__)
    options.add_argument("--ranks", type=int, default=10_000)
    options.add_argument("--reads-per-s", type=float, default=READS_PER_S)
    options.add_argument("--divide", type=int, default=10, help="ranks and reads/s of storms, by this number")
    given = options.parse_args()
    made = simulated.made_by(options, given, ("ranks", "reads_per_s", "divide", "seed"))
    lines = HEAD.format(made=made, batch=8).splitlines()
    requests: dict[tuple[int, str], RankRequests] = {}
    for publishes, plans, found in measured(PUBLISHES):
        requests[publishes, plans] = found
        lines.append(count_row(publishes, plans, found))
    lines += SIMULATED.format(publishes=USUAL, starts=STARTS_S).splitlines()
    fleet = fleet_of(requests[USUAL, "each"], requests[USUAL, "first"], given.ranks, given.reads_per_s)
    lines += simulation_rows(fleet, given.divide, given.seed)
    return simulated.finish(COMMAND, given, [*lines, *TAIL.splitlines()])


def measured(sizes: Sequence[int]) -> Iterator[tuple[int, str, RankRequests]]:
    """Yield the requests of a rank by publishes of the root, and by who makes the plan."""
    with tempfile.TemporaryDirectory() as folder:
        for publishes in sizes:
            root = Path(folder, str(publishes))
            make_root(root, publishes)
            for plans in ("each", "first"):
                yield publishes, plans, counted(root, plans)


def count_row(publishes: int, plans: str, found: RankRequests) -> str:
    """Return the row of a count."""
    kinds = ", ".join(f"{n} {kind}" for kind, n in found.by_kind().most_common(3))
    opened = {"each": "each opens the root", "first": "from the first rank"}[plans]
    n_opening = sum(map(len, found.opening))
    return simulated.row(publishes, opened, n_opening, f"{found.n}: {kinds}")


def fleet_of(each: RankRequests, first: RankRequests, ranks: int, reads_per_s: float) -> Fleet:
    """Return a fleet whose ranks ask as the counted ones."""
    return Fleet(
        ranks=ranks,
        reads_per_s=reads_per_s,
        opening=[len(wave) for wave in each.opening],
        rest=[len(wave) for wave in first.waves],
        ahead=first.second,
    )


def simulation_rows(fleet: Fleet, divide: int, seed: int) -> Iterator[str]:
    """Yield the rows of the cases; storms are of fleets and stores divided alike."""
    small = replace(fleet, ranks=fleet.ranks // divide, reads_per_s=fleet.reads_per_s / divide)
    now = next(case for case in CASES if NOW in case.name)
    for case in CASES:
        used = fleet if case is now else small
        yield simulated_row(case.name, used, Simulation(used, case, seed).run())
    checkpoint, indexes, samples = fleet.rest
    old = replace(
        small,
        rest=StartRequests(checkpoint=checkpoint, tables=MANY_TABLES, indexes=indexes, samples=samples).waves,
    )
    for name, used in (
        (f"{NOW}, a tenth of the ranks", replace(fleet, ranks=fleet.ranks // 10)),
        (
            f"{NOW}, a tenth of the ranks, at one moment",
            replace(fleet, ranks=fleet.ranks // 10, starts_s=0.0),
        ),
        (f"{NOW}, all start at one moment", replace(fleet, starts_s=0.0)),
        (f"{NOW}, after 10,000 publishes", old),
    ):
        yield simulated_row(name, used, Simulation(used, now, seed).run())


def simulated_row(name: str, fleet: Fleet, outcome: Outcome) -> str:
    """Return the row of a simulation."""
    seconds = outcome.everywhere_s
    first = "never" if seconds is None else f"{seconds:.1f} s"
    of = f"{fleet.ranks:,}, {fleet.reads_per_s:,.0f}"
    return simulated.row(name, of, first, f"{outcome.lost:,}", f"{outcome.throttled:,}")


if __name__ == "__main__":
    raise SystemExit(main())
