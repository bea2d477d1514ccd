"""Two runs held against each other: the first step whose digests differ, and the slots of both there."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import PenstockError
from loader.order.steps.slots import Slots, rank_slice, slot_identities
from loader.run.trail.read_trail import RunTrail

from ..json_record import Record
from ..replays.index_replay import index_replay
from ..samples.marks import counted
from ..samples.shown_values import version_of

if TYPE_CHECKING:
    import polars as pl

MOST_SLOTS = 200
"""Slots that are listed."""
_PLACE = ("step", "world_size", "rank")
_TOLD = (*_PLACE, "digest", "substituted", "start")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSample(Record):
    """The sample that a run had in a slot."""

    source: str
    """Name of the plan's source."""
    key: str
    """Key of the sample."""
    version: str
    """Name of its version; "" for a source without bytes."""
    ordinal: int
    """Number of the sample in its version."""
    attempt: int
    """0, or the number of the substitute that came instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSlot(Record):
    """A slot with different samples."""

    slot: int
    """Number of the slot in the global batch."""
    samples: tuple[ComparedSample | None, ComparedSample | None]
    """The sample of the first run and of the second; None for padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison(Record):
    """Two runs of trainings."""

    runs: tuple[str, str]
    """Names of the runs."""
    compared: int
    """Steps that both runs recorded, whole or by one rank of as many."""
    n_differing: int
    """Those of them whose digests differ."""
    step: int
    """First step whose digests differ; -1 for none."""
    rank: int
    """Data-parallel rank of it; 0 where whole batches were compared."""
    world_size: int
    """Number of ranks; 1 where whole batches were compared."""
    digests: tuple[int, ...]
    """Digests of the first run and of the second; none where no step differs."""
    n_slots: int
    """Slots of that step with different samples."""
    slots: tuple[ComparedSlot, ...]
    """The first 200 of them."""
    problem: str
    """The reason why slots are not listed; "" where they are."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The result in words."""
        one, two = self.runs
        if not self.compared:
            return (f"{one} and {two} have no step in common, whole or by one rank of as many",)
        if self.step < 0:
            return (
                "1 step is alike" if self.compared == 1 else f"{counted(self.compared, 'step')} are alike",
            )
        first = f"step {self.step}, rank {self.rank} of {self.world_size}, is the first that differs"
        if self.problem:
            first += f"; its slots are not to be had: {self.problem}"
        elif not self.n_slots:
            first += ": the same samples on record; their bytes differ, or substitutes that no ledger has"
        else:
            first += f", in {counted(self.n_slots, 'slot')}"
        return first, f"{self.n_differing:,} of {counted(self.compared, 'step')} in common differ"


def run_comparison(root: loader.Root, one: RunTrail, two: RunTrail) -> RunComparison:
    """Hold two runs against each other.

    Costs a pass over both trails, and the keys of one step; no media. The last time that a rank did a step counts.
    """
    places = _places(one).join(_places(two), on=_PLACE, suffix="_two").sort(*_PLACE)
    differing = places.filter(places["digest"] != places["digest_two"])
    found: list[ComparedSlot] = []
    problem = ""
    row: dict[str, Any] = {"step": -1, "rank": 0, "world_size": 1}
    if len(differing):
        row = differing.row(0, named=True)
        second = {name: row[name if name in _PLACE else f"{name}_two"] for name in _TOLD}
        try:
            found = _compared(_samples(root, one, row), _samples(root, two, second))
        except PenstockError as error:
            problem = str(error)
    return RunComparison(
        runs=(one.run, two.run),
        compared=places["step"].n_unique(),
        n_differing=differing["step"].n_unique(),
        step=row["step"],
        rank=row["rank"],
        world_size=row["world_size"],
        digests=(row["digest"], row["digest_two"]) if len(differing) else (),
        n_slots=len(found),
        slots=tuple(found[:MOST_SLOTS]),
        problem=problem,
    )


def _places(trail: RunTrail) -> "pl.DataFrame":
    """Return the last row of each step, world size and rank; a whole batch is as if one rank had got it."""
    import polars as pl

    whole = trail.whole.sort("at_us").unique("step", keep="last", maintain_order=True)
    one_rank = whole.with_columns(
        *(
            pl.lit(value, trail.steps.schema[name]).alias(name)
            for name, value in (("rank", 0), ("world_size", 1))
        )
    )
    rows = pl.concat([trail.steps.sort("at_us").select(*_TOLD), one_rank.select(*_TOLD)])
    return rows.unique(_PLACE, keep="last", maintain_order=True)


_Samples = dict[int, tuple[int, ComparedSample]]


def _compared(one: _Samples, two: _Samples) -> list[ComparedSlot]:
    """Return the slots whose samples differ, by number. A sample of another version is another sample."""
    return [
        ComparedSlot(
            slot=slot, samples=(one[slot][1] if slot in one else None, two[slot][1] if slot in two else None)
        )
        for slot in sorted(one.keys() | two.keys())
        if one.get(slot, (None,))[0] != two.get(slot, (None,))[0]
    ]


def _samples(root: loader.Root, trail: RunTrail, row: dict[str, Any]) -> _Samples:
    """Return slot -> (identity in a digest, sample) of a row's step, recorded substitutes laid in."""
    start, step = trail.start(row["start"]), row["step"]
    plan = loader.open_plan(root, start.plan, retired=True)
    first = rank_slice(plan.batch_size(step), row["rank"], row["world_size"]).start
    with index_replay(plan, root if row["substituted"] else None, start.epochs) as replay:
        replay.settle(step, [(row["rank"], row["world_size"], row["digest"], row["substituted"])])
        return _named(plan, replay.slots(step, row["rank"], row["world_size"]), first)


def _named(plan: loader.Plan, slots: Slots, first: int) -> _Samples:
    named: _Samples = {}
    identities = slot_identities(plan, slots).tolist()
    for index, (source, one) in enumerate(plan.sources.items()):
        mine = ((slots.source == index) & slots.valid).nonzero()[0]
        version = version_of(plan, source)
        keys = one.view.keys(slots.ordinal[mine]) if len(mine) else []
        for row, key in zip(mine.tolist(), keys, strict=True):
            sample = ComparedSample(
                source=source,
                key=key,
                version="" if version is None else version.name,
                ordinal=int(slots.ordinal[row]),
                attempt=int(slots.attempt[row]),
            )
            named[first + row] = identities[row], sample
    return named
