"""The work COPY: a node walks raw objects again, and copies a run of their samples into a part."""

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

from .admission import Admission, EarlierSamples
from .sample_facts import Row, TakingRules, unit_row
from .walked_objects import landed_info, samples_of, walked_place

_BYTES_PER_S = 50e6
"""Bytes copied per second, roughly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask:
    """A run of samples with the same fields, to copy."""

    landing: str
    """URL of the objects' store."""
    root: str
    """URL of the store for the part."""
    txn: str
    """Transaction of the part."""
    number: int
    """Number of the part within the batch."""
    raws: list[Row]
    """Rows of `raw_objects` for one shard, in key order."""
    run: int
    """Number of the run within the shard."""
    groups: dict[str, str]
    """Field -> group."""
    rules: TakingRules
    """Rules for ingesting the samples."""
    limit_s: float
    """Time limit in seconds."""
    columns: dict[str, str] = field(default_factory=dict)
    """Column that comes from JSON documents -> its type in this batch."""
    earlier: dict[str, EarlierSamples] = field(default_factory=dict)
    """Key of an object -> the dataset's samples from this object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedPart:
    """The part copied from a run."""

    part: dict[str, Any] | None
    """The part as JSON; None if every sample is left out."""
    rows: list[Row]
    """Rows of `units`."""
    admission: Admission
    """Admitted samples."""


def copy_run(task: CopyTask, node: Node) -> CopiedPart:
    """Copy a run of samples. Raises: Unusable if an object was replaced; errors of the format; StoreError."""
    landing, rules = node.open(task.landing), task.rules
    place = walked_place(task.txn, landing, rules.format, rules.options)
    infos = [landed_info(landing, raw) for raw in task.raws]
    (shard,) = shards_of(infos, len(infos))
    rows = place.rows(shard)[task.run]
    if task.columns and (table := rows.metadata_table()) is not None:
        rows.metadata = place.members.as_agreed(table, task.columns)
    known = list(samples_of(rules, shard, rows, {raw["key"]: raw for raw in task.raws}))
    (run,) = samples_in([(shard, rows)], [[one.key for one in known]])
    admission, sources = Admission(), dict[str, Any]()

    def samples_of_run() -> Iterator[tuple[Any, ...]]:
        for fields, known_sample in zip(read_fields(landing, run), known, strict=True):
            # A JSON document's columns depend on batch and release, so only the document counts as content.
            content = {
                name: value for name, value in known_sample.metadata.items() if name not in task.columns
            }
            from_json = {name: value for name, value in known_sample.metadata.items() if name in task.columns}
            sample = Sample(key=known_sample.key, fields=fields, metadata=content, source=known_sample.source)
            before = task.earlier.get(known_sample.source["raw_key"], EarlierSamples())
            if new := admission.admit(sample, before, known_sample.has_own_split):
                sources[new.key] = new.source
                yield new.key, new.fields, {**new.metadata, **from_json}, new.source

    samples = samples_of_run()
    if (first := next(samples, None)) is None:
        return CopiedPart(part=None, rows=[], admission=admission)
    every, name = chain([first], samples), f"{task.number:05d}"
    part = write_part(node.open(task.root), task.txn, every, group=COMMON, groups=task.groups, name=name)
    kind = modality_of(set(rows.fields))
    units = [unit_row(key, kind, part.id, source, admission.contents[key]) for key, source in sources.items()]
    return CopiedPart(part=part.to_json(), rows=units, admission=admission)


def _alike(task: CopyTask) -> CopyTask:
    return replace(task, rules=task.rules.of_no_run)


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
