"""The copy of walked samples as a work: a node walks a shard of raw objects again, and writes a run of it as a part."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from loader.dataset.writing.part_writer import write_part
from loader.dataset.writing.spill import Sample
from penstock.card.classes import modality_of
from penstock.compute.work import Node, Work
from penstock.formats.importing.spans import read_fields, samples_in
from penstock.formats.registration.shard_rows import COMMON, shards_of

from .known_samples import Beside, EarlierSamples
from .sample_facts import Row, Taking, unit_row
from .walked_objects import landed_info, samples_of, walked_place

_BYTES_PER_S = 50e6
"""Bytes that are copied in a second, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask:
    """Samples of raw objects, all with the same fields."""

    landing: str
    """URL of the objects' store."""
    root: str
    """URL of the store that takes the part."""
    txn: str
    """Transaction of the part."""
    number: int
    """Number of the part in its batch."""
    raws: list[Row]
    """Rows of the landed objects of a shard, by key."""
    run: int
    """Number of the run in the shard."""
    groups: dict[str, str]
    """Field -> its group."""
    taking: Taking
    """Rules by which the dataset takes them."""
    limit_s: float
    """Seconds that the copy may take."""
    columns: dict[str, str] = field(default_factory=dict)
    """Column -> type, of those that values of JSON documents become in the batch."""
    earlier: dict[str, EarlierSamples] = field(default_factory=dict)
    """Key of an object -> samples that the dataset has of it, of those that it has some of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedPart:
    """Part of a run."""

    part: dict[str, Any] | None
    """The part as JSON; None where every sample is left out."""
    rows: list[Row]
    """Rows of the `units` table."""
    beside: Beside
    """The samples beside those that the dataset has."""


def copy_run(task: CopyTask, node: Node) -> CopiedPart:
    """Copy a run of samples. Raises: Unusable for an object that is another by now; as the format; StoreError."""
    landing, taking = node.open(task.landing), task.taking
    place = walked_place(task.txn, landing, taking.format, taking.options)
    infos = [landed_info(landing, raw) for raw in task.raws]
    (shard,) = shards_of(infos, len(infos))
    rows = place.rows(shard)[task.run]
    if task.columns and (table := rows.metadata_table()) is not None:
        rows.metadata = place.members.as_agreed(table, task.columns)
    known = list(samples_of(taking, shard, rows, {raw["key"]: raw for raw in task.raws}))
    (run,) = samples_in([(shard, rows)], [[one.key for one in known]])
    beside, taken = Beside(), dict[str, Any]()

    def given() -> Iterator[tuple[Any, ...]]:
        for fields, one in zip(read_fields(landing, run), known, strict=True):
            # The document is a field: its columns are no content, since they depend on the batch and the release.
            content = {name: value for name, value in one.metadata.items() if name not in task.columns}
            told = {name: value for name, value in one.metadata.items() if name in task.columns}
            sample = Sample(key=one.key, fields=fields, metadata=content, source=one.source)
            before = task.earlier.get(one.source["raw_key"], EarlierSamples())
            if new := beside.taken(sample, before, one.has_own_split):
                taken[new.key] = new.source
                yield new.key, new.fields, {**new.metadata, **told}, new.source

    samples = given()
    if (first := next(samples, None)) is None:
        return CopiedPart(part=None, rows=[], beside=beside)
    every, name = chain([first], samples), f"{task.number:05d}"
    part = write_part(node.open(task.root), task.txn, every, group=COMMON, groups=task.groups, name=name)
    kind = modality_of(set(rows.fields))
    units = [unit_row(key, kind, part.id, source, beside.contents[key]) for key, source in taken.items()]
    return CopiedPart(part=part.to_json(), rows=units, beside=beside)


def _alike(task: CopyTask) -> CopyTask:
    return replace(task, taking=task.taking.of_no_run)


def _limit_s(task: CopyTask) -> float:
    return task.limit_s


def _cost_s(task: CopyTask) -> float:
    return float(sum(raw["nbytes"] for raw in task.raws) / _BYTES_PER_S)


COPY = Work(
    name="copy",
    version="3",
    function=copy_run,
    unit=CopyTask,
    result=CopiedPart,
    timeout_s=_limit_s,
    cost_s=_cost_s,
    alike=_alike,
)
