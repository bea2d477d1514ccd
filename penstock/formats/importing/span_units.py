"""Work units of samples whose bytes are spans of objects: each unit becomes a part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from loader.dataset.names import key_hash
from loader.dataset.shards.shard import Int64s
from loader.storage import ObjectInfo

from ..registration.shard_rows import Rows, Shard
from .write_parts import RENAMED


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSamples:
    """Samples with the same fields, as columns, and their spans."""

    keys: Sequence[str]
    """Key of each in the version."""
    source_keys: Sequence[str]
    """Key of each in its format."""
    fields: tuple[str, ...]
    """Field names, sorted."""
    metadata: Sequence[Mapping[str, Any]]
    """Metadata column -> value, of each sample."""
    sources: Sequence[Mapping[str, str]]
    """Provenance column -> value, of each sample."""
    objects: Sequence[str]
    """Object key of each sample."""
    infos: Mapping[str, ObjectInfo]
    """Object key -> the object."""
    places: Int64s
    """int64 [samples, fields, 2]: offset in the object, nbytes."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def sizes(self) -> Int64s:
        """int64 [samples]: bytes of each sample's fields."""
        sizes: Int64s = self.places[:, :, 1].sum(axis=1)
        return sizes

    def cut(self, start: int, stop: int) -> "SpanSamples":
        """Return a slice of the samples."""
        return SpanSamples(
            keys=self.keys[start:stop],
            source_keys=self.source_keys[start:stop],
            fields=self.fields,
            metadata=self.metadata[start:stop],
            sources=self.sources[start:stop],
            objects=self.objects[start:stop],
            infos=self.infos,
            places=self.places[start:stop],
        )


@dataclass(frozen=True, slots=True)
class SpanUnit:
    """Samples of one part."""

    number: int
    """Number in the import."""
    rows: SpanSamples
    """The samples, in order."""
    size: int
    """Its share of the work: bytes of the shards, or number of samples."""
    renamed: bool = False
    """True if keys or groups differ from the first guess, under which it may have been written."""

    @property
    def name(self) -> str:
        """Name of its part."""
        return f"{self.number:05d}{RENAMED if self.renamed else ''}"


def samples_in(walked: Sequence[tuple[Shard, Rows]], keys: Sequence[Sequence[str]]) -> list[SpanSamples]:
    """Return the samples of each run with the same fields. keys: of each run's samples."""
    out = []
    for (shard, rows), own in zip(walked, keys, strict=True):
        start_of = {info.key: start for info, start in zip(shard.infos, shard.offsets, strict=True)}
        starts = np.array([start_of[of] for of in rows.objects], np.int64)
        places = rows.spans()
        out.append(
            SpanSamples(
                keys=own,
                source_keys=rows.source_keys,
                fields=rows.fields,
                metadata=rows.each_metadata(),
                sources=rows.sources,
                objects=rows.objects,
                infos={info.key: info for info in shard.infos},
                places=np.stack([places[:, :, 0] - starts[:, None], places[:, :, 1]], axis=2),
            )
        )
    return out


def units_of(runs: Sequence[SpanSamples], shard_bytes: int) -> list[SpanUnit]:
    """Return units of about `shard_bytes`, with samples of the same fields in the order of their keys' hashes."""
    kinds: dict[tuple[str, ...], list[SpanSamples]] = {}
    for run in runs:
        kinds.setdefault(run.fields, []).append(run)
    ordered = [_in_hash_order(same_fields) for _, same_fields in sorted(kinds.items())]
    return [SpanUnit(number, rows, len(rows)) for number, rows in enumerate(cut(ordered, shard_bytes))]


def cut(runs: Sequence[SpanSamples], shard_bytes: int) -> Iterator[SpanSamples]:
    """Yield pieces of runs, each of which ends with the sample that fills it."""
    for run in runs:
        ends, start, done = np.cumsum(run.sizes), 0, 0
        while start < len(run):
            stop = min(len(run), int(np.searchsorted(ends, done + shard_bytes)) + 1)
            yield run.cut(start, stop)
            start, done = stop, int(ends[stop - 1])


def _in_hash_order(runs: Sequence[SpanSamples]) -> SpanSamples:
    """Return all samples of runs with the same fields, in the order of their keys' hashes."""
    keys = [*chain.from_iterable(run.keys for run in runs)]
    hashes = [key_hash(key) for key in keys]
    order = sorted(range(len(keys)), key=hashes.__getitem__)

    def ordered(columns: Iterator[Sequence[Any]]) -> list[Any]:
        return [*map([*chain.from_iterable(columns)].__getitem__, order)]

    return SpanSamples(
        keys=[*map(keys.__getitem__, order)],
        source_keys=ordered(run.source_keys for run in runs),
        fields=runs[0].fields,
        metadata=ordered(run.metadata for run in runs),
        sources=ordered(run.sources for run in runs),
        objects=ordered(run.objects for run in runs),
        infos={key: info for run in runs for key, info in run.infos.items()},
        places=np.concatenate([run.places for run in runs])[order],
    )
