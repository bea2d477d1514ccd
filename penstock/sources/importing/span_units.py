"""Work units of samples whose bytes are spans of objects: runs with the same fields, each of which becomes a part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from loader.dataset.names import key_hash
from loader.foreign.shard_rows import Rows, Shard
from loader.storage import ObjectInfo


class Row(NamedTuple):
    """One sample, and where its bytes are."""

    key: str
    """Key in the version."""
    source_key: str
    """Key in its format."""
    fields: tuple[str, ...]
    """Names, sorted."""
    metadata: Mapping[str, Any]
    """Metadata column -> value."""
    source: Mapping[str, str]
    """Provenance column -> value, as its format tells it."""
    info: ObjectInfo
    """Its object."""
    spans: tuple[tuple[int, int], ...]
    """Offset in the object and nbytes of each field."""

    @property
    def nbytes(self) -> int:
        """Bytes of the fields."""
        return sum(nbytes for _, nbytes in self.spans)


@dataclass(frozen=True, slots=True)
class Unit:
    """Samples of one part."""

    number: int
    """Number in the import."""
    rows: Sequence[Row]
    """The samples, in their order."""

    @property
    def name(self) -> str:
        """Name of its part."""
        return f"{self.number:05d}"

    @property
    def size(self) -> int:
        """Number of its samples."""
        return len(self.rows)


def rows_in(walked: Sequence[tuple[Shard, Rows]], keys: Sequence[Sequence[str]]) -> list[list[Row]]:
    """Return the samples of each run that has the same fields. keys: of each run's samples."""
    out = []
    for (shard, rows), own in zip(walked, keys, strict=True):
        at = {info.key: (info, start) for info, start in zip(shard.infos, shard.offsets, strict=True)}
        run, metadata, places = [], rows.each_metadata(), rows.spans()
        for number, key in enumerate(own):
            info, start = at[rows.objects[number]]
            spans = tuple((offset - start, nbytes) for offset, nbytes in places[number].tolist())
            told = metadata[number], rows.sources[number]
            run.append(Row(key, rows.source_keys[number], rows.fields, *told, info, spans))
        out.append(run)
    return out


def units_of(runs: Sequence[Sequence[Row]], shard_bytes: int, shuffle: bool) -> list[Unit]:
    """Return units of about `shard_bytes`: of one run each, or of all samples in the order of their keys' hashes."""
    if shuffle:
        kinds: dict[tuple[str, ...], list[Row]] = {}
        for run in runs:
            kinds.setdefault(run[0].fields, []).extend(run)
        runs = [sorted(rows, key=lambda row: key_hash(row.key)) for _, rows in sorted(kinds.items())]
    units: list[Unit] = []
    for run in runs:
        some, nbytes = list[Row](), 0
        for row in run:
            some.append(row)
            nbytes += row.nbytes
            if nbytes >= shard_bytes:
                units.append(Unit(len(units), some))
                some, nbytes = [], 0
        if some:
            units.append(Unit(len(units), some))
    return units
