"""The work COPY: a node copies runs of samples, without reading them, into parts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from loader.dataset.shards.shard import Payload
from loader.dataset.writing.single_part import write_part
from loader.dataset.writing.spill import Sample
from loader.storage import Store
from penstock.card.classes import fields_modality
from penstock.compute.work import Node, Work
from penstock.formats.importing.spans import read_fields, span_samples
from penstock.formats.reading.sample import ForeignShard, object_shards
from penstock.formats.registration.shard_rows import COMMON, Rows

from .admission import Admission, ObjectHistory
from .read_work import SampleTask, limit_s, task_nbytes, without_run
from .sample_facts import Row, unit_row
from .walked_objects import KnownSample, object_info, sample_facts, walked_place

_BYTES_PER_S = 50e6
"""Rough rate, for the estimates by which work is divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask(SampleTask):
    """A run of samples with the same fields, of one shard's raw objects, to copy."""

    number: int
    """Number of the part within the batch."""
    run: int
    """Number of the run within the shard."""
    groups: dict[str, str]
    """Field -> group."""
    columns: dict[str, str] = field(default_factory=dict)
    """Column from JSON documents -> its type in this batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedPart:
    """The part copied from a run."""

    part: dict[str, Any] | None
    """Part as JSON; None if every sample is left out."""
    rows: list[Row]
    """Rows of `units`."""
    admission: Admission
    """Admitted samples."""


def copy_run(task: CopyTask, node: Node) -> CopiedPart:
    """Copy a run of samples. Raises: Unusable if an object was replaced; errors of the format; StoreError."""
    landing = node.open(task.landing)
    shard, rows = _walk(task, landing)
    raws: dict[str, Row] = {}
    for raw in task.raws:
        raws[raw["key"]] = raw
    known_samples = list(sample_facts(task.rules, shard, rows, raws))
    keys = [known.key for known in known_samples]
    (run,) = span_samples([(shard, rows)], [keys])
    copied = _CopiedSamples(task)
    samples = copied.samples(known_samples, read_fields(landing, run))
    # One sample is read ahead, because a part without samples cannot be written.
    first = next(samples, None)
    if first is None:
        return CopiedPart(part=None, rows=[], admission=copied.admission)
    part = write_part(
        node.open(task.root),
        task.txn,
        chain([first], samples),
        group=COMMON,
        groups=task.groups,
        name=f"{task.number:05d}",
    )
    # Only now: writing the part has filled `copied`.
    kind = fields_modality(set(rows.fields))
    units = list[Row]()
    for key, source in copied.sources.items():
        content = copied.admission.contents[key]
        units.append(unit_row(key, kind, part.id, source, content))
    return CopiedPart(
        part=part.to_json(),
        rows=units,
        admission=copied.admission,
    )


def _walk(task: CopyTask, landing: Store) -> tuple[ForeignShard, Rows]:
    """Return the task's run, with the batch's types for its columns from JSON documents."""
    rules = task.rules
    place = walked_place(task.txn, landing, rules.format, rules.options)
    infos = [object_info(landing, raw) for raw in task.raws]
    (shard,) = object_shards(infos, len(infos))
    # The submitter walked the same objects: the run has the same number there.
    rows = place.rows(shard)[task.run]
    if task.columns:
        table = rows.metadata_table()
        if table is not None:
            rows.metadata = place.members.as_agreed(table, task.columns)
    return shard, rows


class _CopiedSamples:
    """Admits the samples of a run as `write_part` takes them; collects their admission and provenance."""

    def __init__(self, task: CopyTask) -> None:
        self._task = task
        self.admission = Admission()
        self.sources: dict[str, Mapping[str, str]] = {}
        """Admitted key -> provenance."""

    def samples(
        self,
        known_samples: Sequence[KnownSample],
        fields_of_samples: Iterable[Mapping[str, Payload]],
    ) -> Iterator[tuple[Any, ...]]:
        """Yield (key, fields, metadata, provenance) of each admitted sample."""
        columns_of_json = self._task.columns
        for fields, known in zip(fields_of_samples, known_samples, strict=True):
            # A JSON document's columns depend on batch and release, so only the document counts as content.
            content: dict[str, Any] = {}
            from_json: dict[str, Any] = {}
            for name, value in known.metadata.items():
                if name in columns_of_json:
                    from_json[name] = value
                else:
                    content[name] = value
            sample = Sample(
                key=known.key,
                fields=fields,
                metadata=content,
                source=known.source,
            )
            raw_key = known.source["raw_key"]
            earlier = self._task.earlier.get(raw_key, ObjectHistory())
            admitted = self.admission.admit(sample, earlier, known.has_own_split)
            if admitted is None:
                continue
            self.sources[admitted.key] = admitted.source
            metadata = {**admitted.metadata, **from_json}
            yield admitted.key, admitted.fields, metadata, admitted.source


def _copy_s(task: SampleTask) -> float:
    return task_nbytes(task) / _BYTES_PER_S


COPY = Work(
    name="copy",
    version="3",
    function=copy_run,
    unit=CopyTask,
    result=CopiedPart,
    timeout_s=limit_s,
    cost_s=_copy_s,
    alike=without_run,
)
