"""Write samples as parts, exactly once: a repeated import skips whatever is recorded.

`data/<txn>/<folder>/<name>.json` lists a unit's parts and is written last; `<part>.part.json` records each full part.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from loader.dataset.shards.part import Part
from loader.dataset.writing.part_writer import PartWriter, SampleBlock, sample_block
from loader.dataset.writing.spill import Sample
from loader.errors import InvalidSample, ObjectNotFound, StoreError
from loader.json_text import DamagedJson, canonical_json, parse_json_object
from loader.storage import Store
from loader.storage.disk.unlisted_files import delete_in_place, list_in_place

FOLDER = "imported"
BLOCK_BYTES = 2**20
"""Samples written together, in bytes."""
MOST_OPEN = 32
"""Most open parts of a unit, one per set of fields."""
MISSING = "missing.json"
"""Name of an unfinished import's record of what its source lacks."""
RENAMED = "s"
"""Name suffix of a unit written again with other keys or groups."""


class ImportUnit(Protocol):
    @property
    def name(self) -> str:
        """Name of its first part."""

    @property
    def size(self) -> int:
        """Share of the work."""


Unit = TypeVar("Unit", bound=ImportUnit)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLayout:
    """Location and size of parts."""

    store: Store
    """The root's store."""
    txn: str
    """Transaction id."""
    group_of: Callable[[str], str]
    """Field name -> group."""
    shard_bytes: int
    """Bytes of fields at which a part is full."""
    folder: str = FOLDER
    """Folder in the transaction; a new name ignores earlier parts."""
    any_values: bool = False
    """True if metadata types are undeclared."""


class WrittenParts(NamedTuple):
    parts: list[Part]
    """In order of their first samples."""
    nbytes: int
    """Bytes of fields that this run wrote."""
    skipped: int
    """Parts that an earlier run wrote."""


class WrittenUnit(NamedTuple, Generic[Unit]):
    unit: Unit
    written: WrittenParts

    @property
    def parts(self) -> list[Part]:
        return self.written.parts


def write_parts(samples: Iterable[Sample | SampleBlock], layout: PartLayout, name: str) -> WrittenParts:
    """Return the samples' parts: several if fields differ or a part is full. Thread-safe.

    samples: not iterated if the parts exist; blocks are copied. name: of the first part.
    """
    note = f"data/{layout.txn}/{layout.folder}/{name}.json"
    try:
        rows = parse_json_object(layout.store.get(note).data)["parts"]
        parts = [Part.from_json(part) for part in rows]
        return WrittenParts(parts, 0, len(parts))
    except (ObjectNotFound, DamagedJson, InvalidSample, KeyError, TypeError):
        pass  # not yet written, or not completely
    every = list[_OpenPart]()
    opened = dict[tuple[str, ...], _OpenPart]()
    try:
        for sample in samples:
            kind = tuple(sorted(sample.fields))
            if kind in opened and opened[kind].nbytes >= layout.shard_bytes:
                opened.pop(kind).finish(noted=True)
            if kind not in opened:
                if len(opened) == MOST_OPEN:
                    opened.pop(next(iter(opened))).finish(noted=True)
                every.append(_OpenPart(layout, f"{name}_{len(every)}" if every else name))
                opened[kind] = every[-1]
            opened[kind].add(sample)
        parts = [part.finish() for part in every]
    finally:
        for part in every:
            part.close()
    if parts:  # a unit without samples is read again: the caller must learn why it has none
        layout.store.put(note, canonical_json({"parts": [part.to_json() for part in parts]}))
    nbytes = sum(part.nbytes for part in every if not part.was_there)
    return WrittenParts(parts, nbytes, sum(part.was_there for part in every))


def in_order(written: Iterable[WrittenUnit[Unit]]) -> list[WrittenUnit[Unit]]:
    """Return units in numeric order; one that was written again replaces the original."""
    last = dict[str, WrittenUnit[Unit]]()
    for unit in sorted(written, key=lambda item: item.unit.name.endswith(RENAMED)):
        last[unit.unit.name.removesuffix(RENAMED)] = unit
    return [last[name] for name in sorted(last, key=lambda name: (len(name), name))]


def delete_units(root: Store, txn: str, names: Collection[str]) -> None:
    """Delete the parts and records of replaced units, whose keys a takedown would not find.

    The collector deletes what the store refuses to delete.
    """
    there = list_in_place(root, f"data/{txn}/{FOLDER}/", f"data/{txn}/")
    keys = [info.key for info, is_link in there if not is_link and _part_unit(info.key) in names]
    with suppress(StoreError):  # the writer may have no permission, or an object lock may protect them
        # parts go first: no record may list a deleted part
        delete_in_place(root, sorted(keys, key=lambda key: not key.endswith(".json")), f"data/{txn}/")


def _part_unit(key: str) -> str:
    part = key.rpartition("/")[2].partition(".")[0].rpartition("-")[2]
    return part.partition("_")[0]


class _OpenPart:
    def __init__(self, layout: PartLayout, name: str) -> None:
        self._store = layout.store
        self._note = f"data/{layout.txn}/{layout.folder}/{name}.part.json"
        self._writer = PartWriter(
            layout.store,
            txn=layout.txn,
            attempt=layout.folder,
            name=name,
            group_of=layout.group_of,
            any_values=layout.any_values,
        )
        self._part: Part | None = None
        self.nbytes = 0
        self._waiting = list[Sample]()
        self._n_waiting = 0
        with suppress(ObjectNotFound, DamagedJson, InvalidSample):  # not yet written, or not completely
            self._part = Part.from_json(parse_json_object(layout.store.get(self._note).data))
        self.was_there = self._part is not None

    def add(self, sample: Sample | SampleBlock) -> None:
        self.nbytes += sample.nbytes
        if self.was_there:
            return
        if isinstance(sample, SampleBlock):
            self._writer.add_block(sample)
            return
        if self._n_waiting + sample.nbytes > BLOCK_BYTES:
            self._write()
        self._waiting.append(sample)
        self._n_waiting += sample.nbytes

    def _write(self) -> None:
        if len(self._waiting) > 1:
            self._writer.add_block(sample_block(self._waiting))
        elif self._waiting:
            self._writer.add(self._waiting[0])
        self._waiting = []
        self._n_waiting = 0

    def finish(self, noted: bool = False) -> Part:
        if self._part is None:
            self._write()
            self._part = self._writer.finish()
            if noted:
                self._store.put(self._note, canonical_json(self._part.to_json()))
        return self._part

    def close(self) -> None:
        self._writer.close()
