"""The copy of walked samples as a work: a node walks a shard of raw objects again, and writes a run of it as a part."""

from dataclasses import dataclass
from typing import Any

from loader.dataset.writing.part_writer import write_part
from loader.foreign.groups import COMMON
from loader.foreign.shard_rows import shards_of
from penstock.card.counting.classes import modality_of
from penstock.compute.work import Node, Work
from penstock.sources.importing.span_blocks import read_fields
from penstock.sources.importing.span_units import samples_in

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedPart:
    """Part of a run."""

    part: dict[str, Any]
    """The part as JSON."""
    rows: list[Row]
    """Rows of the `units` table."""


def copy_run(task: CopyTask, node: Node) -> CopiedPart:
    """Copy a run of samples. Raises: Unusable for an object that is another by now; as the format; StoreError."""
    landing, taking = node.open(task.landing), task.taking
    place = walked_place(task.txn, landing, taking.format, taking.options)
    infos = [landed_info(landing, raw) for raw in task.raws]
    (shard,) = shards_of(infos, len(infos))
    rows = place.rows(shard)[task.run]
    known = list(samples_of(taking, shard, rows, {raw["key"]: raw for raw in task.raws}))
    (run,) = samples_in([(shard, rows)], [[one.key for one in known]])
    read = zip(read_fields(landing, run), known, strict=True)
    given = ((one.key, fields, one.metadata, one.source) for fields, one in read)
    name = f"{task.number:05d}"
    part = write_part(node.open(task.root), task.txn, given, group=COMMON, groups=task.groups, name=name)
    kind = modality_of(set(rows.fields))
    return CopiedPart(
        part=part.to_json(), rows=[unit_row(one.key, kind, part.id, one.source) for one in known]
    )


def _limit_s(task: CopyTask) -> float:
    return task.limit_s


def _cost_s(task: CopyTask) -> float:
    return float(sum(raw["nbytes"] for raw in task.raws) / _BYTES_PER_S)


COPY = Work(
    name="copy",
    version="1",
    function=copy_run,
    unit=CopyTask,
    result=CopiedPart,
    timeout_s=_limit_s,
    cost_s=_cost_s,
)
