"""Compare two runs: the first step whose digests differ."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import PenstockError
from loader.order.digests import slot_identities
from loader.order.slots import Slots, rank_slice
from loader.run.trail.read_trail import RunTrail

from ..json_record import JsonRecord
from ..marks import count_text
from ..replays.replays import index_replay
from ..shown_values import PlannedSample, sample_names

if TYPE_CHECKING:
    import polars as pl

MOST_SLOTS = 200
"""Most slots listed."""
_KEY = ("step", "world_size", "rank")
_COLUMNS = (*_KEY, "digest", "substituted", "start")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSample(PlannedSample):
    attempt: int
    """0 if planned; else the substitute's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSlot(JsonRecord):
    """A slot that differs."""

    slot: int
    """Global slot."""
    samples: tuple[ComparedSample | None, ComparedSample | None]
    """First and second run's; None for padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison(JsonRecord):
    runs: tuple[str, str]
    """Run names."""
    compared: int
    """Steps that both recorded, whole or for the same rank and world size."""
    n_differing: int
    """Steps of these with different digests."""
    step: int
    """First such step, or -1."""
    rank: int
    """Data-parallel rank there; 0 for whole batches."""
    world_size: int
    """Ranks; 1 for whole batches."""
    digests: tuple[int, ...]
    """Both runs' digests there; empty if none differs."""
    n_slots: int
    """Slots there whose samples differ."""
    slots: tuple[ComparedSlot, ...]
    """The first 200 of these slots."""
    problem: str
    """Why slots are not listed, or ""."""

    @property
    def lines(self) -> tuple[str, ...]:
        left_run, right_run = self.runs
        if not self.compared:
            return (
                f"{left_run} and {right_run} have no step in common, whole or by one rank of equally many",
            )
        if self.step < 0:
            return (
                "1 step is equal" if self.compared == 1 else f"{count_text(self.compared, 'step')} are equal",
            )
        first = f"step {self.step}, rank {self.rank} of {self.world_size}, is the first that differs"
        if self.problem:
            first += f"; its slots are not available: {self.problem}"
        elif not self.n_slots:
            first += ": the same samples on record; their bytes differ, or substitutes that no ledger lists"
        else:
            first += f", in {count_text(self.n_slots, 'slot')}"
        return first, f"{self.n_differing:,} of {count_text(self.compared, 'step')} in common differ"


def run_comparison(root: loader.Root, first: RunTrail, second: RunTrail) -> RunComparison:
    """Compare two runs. If a rank ran a step several times, the last counts.

    Costs a pass over both run logs, and one step's keys. Reads no media.
    """
    parts = _parts(first).join(_parts(second), on=_KEY, suffix="_two").sort(*_KEY)
    differing = parts.filter(parts["digest"] != parts["digest_two"])
    slots: list[ComparedSlot] = []
    problem = ""
    row: dict[str, Any] = {"step": -1, "rank": 0, "world_size": 1}
    if len(differing):
        row = differing.row(0, named=True)
        second_row = {name: row[name if name in _KEY else f"{name}_two"] for name in _COLUMNS}
        try:
            slots = _compare_slots(_samples(root, first, row), _samples(root, second, second_row))
        except PenstockError as error:
            problem = str(error)
    return RunComparison(
        runs=(first.run, second.run),
        compared=parts["step"].n_unique(),
        n_differing=differing["step"].n_unique(),
        step=row["step"],
        rank=row["rank"],
        world_size=row["world_size"],
        digests=(row["digest"], row["digest_two"]) if len(differing) else (),
        n_slots=len(slots),
        slots=tuple(slots[:MOST_SLOTS]),
        problem=problem,
    )


def _parts(trail: RunTrail) -> "pl.DataFrame":
    # Whole batches become rank 0 of 1.
    import polars as pl

    whole = trail.whole.sort("at_us").unique("step", keep="last", maintain_order=True)
    one_rank = whole.with_columns(
        *(
            pl.lit(value, trail.steps.schema[name]).alias(name)
            for name, value in (("rank", 0), ("world_size", 1))
        )
    )
    rows = pl.concat([trail.steps.sort("at_us").select(*_COLUMNS), one_rank.select(*_COLUMNS)])
    return rows.unique(_KEY, keep="last", maintain_order=True)


_Samples = dict[int, tuple[int, ComparedSample]]


def _compare_slots(first: _Samples, second: _Samples) -> list[ComparedSlot]:
    return [
        ComparedSlot(
            slot=slot,
            samples=(first[slot][1] if slot in first else None, second[slot][1] if slot in second else None),
        )
        for slot in sorted(first.keys() | second.keys())
        if first.get(slot, (None,))[0] != second.get(slot, (None,))[0]
    ]


def _samples(root: loader.Root, trail: RunTrail, row: dict[str, Any]) -> _Samples:
    start = trail.start(row["start"])
    step = row["step"]
    plan = loader.plan_of(root, start.plan or trail.run, step)
    first = rank_slice(plan.batch_size(step), row["rank"], row["world_size"]).start
    with index_replay(plan, root if row["substituted"] else None, start.epochs) as replay:
        replay.settle(step, [(row["rank"], row["world_size"], row["digest"], row["substituted"])])
        return _name_samples(plan, replay.slots(step, row["rank"], row["world_size"]), first)


def _name_samples(plan: loader.Plan, slots: Slots, first: int) -> _Samples:
    named: _Samples = {}
    identities = slot_identities(plan, slots).tolist()
    for index, source in enumerate(plan.sources):
        rows = ((slots.source == index) & slots.valid).nonzero()[0]
        names = sample_names(plan, source, slots.ordinal[rows])
        for row, name in zip(rows.tolist(), names, strict=True):
            sample = ComparedSample(source=source, **name, attempt=int(slots.attempt[row]))
            named[first + row] = identities[row], sample
    return named
