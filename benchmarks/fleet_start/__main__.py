"""`python -m benchmarks.fleet_start`: 10,000 ranks begin at once against a store that throttles.

Requests are counted of real ranks; time is simulated. `--page` writes docs/benchmarks-stores.md.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from penstock.train.start_requests import READS_PER_S, STARTS_S, StartRequests

from .. import simulated
from .counts import RankRequests, counted, make_root
from .simulation import Case, Fleet, Outcome, Simulation

COMMAND = "benchmarks.fleet_start"
PUBLISHES = 30
"""Publishes of the root whose requests are counted. With one more, a start from a saved plan requests 65 objects at
once: a store has 64 in flight, so that one waits for a round trip more."""
MANY_TABLES = 27
"""Tables of shards after 10,000 publishes (`python -m benchmarks.scale`): too large to travel with a plan."""
NOW = "plan from the first rank"
CASES = (
    Case(name="each opens the root, budget 60 s", opens="each", is_patient=False),
    Case(name="the same, budget 600 s", opens="each"),
    Case(name="the same, 16 partitions of the prefix", opens="each", partitions=16),
    Case(name=NOW, opens="first"),
)
SECOND = (Case(name="second start: the nodes' caches have samples and indexes", opens="first"),)
HEAD = """# A fleet that begins again

{made} Time is virtual.

**Counted** up to a real rank's first batch of {batch} samples, after {publishes} publishes: {counts}."""
SIMULATED = """
**Simulated** from these counts, with the loader's own code. A prefix answers in 15 to 40 ms, and
sends 503 above its rate. Ranks start within {starts:g} s. A spent budget ends the gang.

| | ranks, reads/s | first batch everywhere | lost ranks |
| --- | --- | --- | --- |"""
TAIL = """
The aims: 35 s for 10,000 ranks, 10 s for their second start, 5 s for 1,000, no lost rank.
Above 5,000 shards, about 1 MiB of tables, use sixteen partitions of the prefix, or a copy on the nodes."""


def main() -> int:
    options = simulated.options_of(COMMAND, __doc__)
    options.add_argument("--ranks", type=int, default=10_000)
    options.add_argument("--reads-per-s", type=float, default=READS_PER_S)
    options.add_argument("--divide", type=int, default=10, help="ranks and reads/s of storms, by this number")
    given = options.parse_args()
    made = simulated.made_by(options, given, ("ranks", "reads_per_s", "divide", "seed"))
    with tempfile.TemporaryDirectory() as folder:
        saved_plan = make_root(Path(folder), PUBLISHES)
        each, saved, first = (counted(Path(folder), plans) for plans in ("each", saved_plan, "first"))
        with tempfile.TemporaryDirectory() as caches:
            second = counted(Path(folder), "first", Path(caches))
    counts = (
        f"{count(each)} if each opens the root, {saved.n} in {len(saved.waves)} round trips for a saved plan, "
        f"{count(first)} with the first rank's plan, {count(second)} if the nodes' caches have samples and indexes"
    )
    lines = HEAD.format(made=made, batch=8, publishes=PUBLISHES, counts=counts).splitlines()
    lines += SIMULATED.format(starts=STARTS_S).splitlines()
    fleet = fleet_of(each, first, given.ranks, given.reads_per_s)
    lines += simulation_rows(fleet, first, given.divide, given.seed)
    lines += second_start_rows(replace(fleet, rest=waves_of(second)), given.seed)
    return simulated.finish(COMMAND, given, [*lines, *TAIL.splitlines()])


def count(found: RankRequests) -> str:
    """Return a count in words."""
    kinds = ", ".join(f"{n} {kind}" for kind, n in found.by_kind().most_common(3))
    return f"{found.n} in {len(found.waves)} round trips ({kinds})"


def fleet_of(each: RankRequests, first: RankRequests, ranks: int, reads_per_s: float) -> Fleet:
    """Return a fleet whose ranks ask as the counted ones."""
    return Fleet(
        ranks=ranks,
        reads_per_s=reads_per_s,
        opening=[len(wave) for wave in each.opening],
        rest=waves_of(first),
    )


def waves_of(requests: RankRequests) -> list[int]:
    """Return the numbers of requests at once."""
    return [len(wave) for wave in requests.waves]


def simulation_rows(fleet: Fleet, first: RankRequests, divide: int, seed: int) -> Iterator[str]:
    """Yield the rows of the cases; storms are of fleets and stores divided alike."""
    small = replace(fleet, ranks=fleet.ranks // divide, reads_per_s=fleet.reads_per_s / divide)
    now = next(case for case in CASES if case.name == NOW)
    for case in CASES:
        used = fleet if case is now else small
        yield simulated_row(case.name, used, Simulation(used, case, seed).run())
    kinds = first.by_kind()  # a busy machine may divide a wave
    asked = StartRequests(
        checkpoint=kinds["checkpoint"], tables=MANY_TABLES, indexes=kinds["index"], samples=kinds["samples"]
    )
    old = replace(small, rest=asked.waves)
    for name, used in (
        ("the same, a tenth of the ranks", replace(fleet, ranks=fleet.ranks // 10)),
        ("the same, after 10,000 publishes", old),
    ):
        yield simulated_row(name, used, Simulation(used, now, seed).run())


def second_start_rows(fleet: Fleet, seed: int) -> Iterator[str]:
    """Yield the rows of a fleet whose nodes' caches have samples and indexes."""
    for case in SECOND:
        yield simulated_row(case.name, fleet, Simulation(fleet, case, seed).run())


def simulated_row(name: str, fleet: Fleet, outcome: Outcome) -> str:
    """Return the row of a simulation."""
    seconds = outcome.everywhere_s
    first = "never" if seconds is None else f"{seconds:.1f} s"
    of = f"{fleet.ranks:,}, {fleet.reads_per_s:,.0f}"
    return simulated.row(name, of, first, f"{outcome.lost:,}")


if __name__ == "__main__":
    raise SystemExit(main())
