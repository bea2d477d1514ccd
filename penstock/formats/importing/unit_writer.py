"""Write the parts of import units once, with a record beside them.

`data/<txn>/imported/<unit>.json` lists the parts of a unit, and is put when all exist. A full part of a larger
unit is recorded at once (`<part>.part.json`), so a repeated import does not write it again.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Generic, NamedTuple, Protocol, TypeVar

from loader.dataset.shards.part import Part
from loader.dataset.writing.part_writer import PartWriter, SampleBlock, block_of
from loader.dataset.writing.spill import Sample
from loader.errors import InvalidSample, ObjectNotFound, StoreError
from loader.json_text import DamagedJson, canonical_json, parse_json_object
from loader.storage import Store
from loader.storage.disk.unlisted_files import delete_in_place, list_in_place

FOLDER = "imported"
BLOCK_BYTES = 2**20
"""Bytes of samples that are written together; a larger sample is written by itself."""
MOST_OPEN = 32
"""Limit on a unit's open parts, which differ in their fields."""
RENAMED = "s"
"""Suffix of a unit that is written again, with other keys or groups than before."""


class ImportUnit(Protocol):
    """A work unit."""

    @property
    def name(self) -> str:
        """Name of the unit in its import, and of its first part."""

    @property
    def size(self) -> int:
        """Its share of the work."""


Unit = TypeVar("Unit", bound=ImportUnit)


class WrittenUnit(NamedTuple, Generic[Unit]):
    """Parts of a unit."""

    unit: Unit
    """The unit."""
    parts: list[Part]
    """Its parts, in the order of their first samples."""
    nbytes: int
    """Bytes of fields written now."""
    skipped: int
    """Parts that an earlier run had written."""


class UnitWriter(Generic[Unit]):
    """Writes the parts of units, or finds them; thread-safe."""

    def __init__(
        self,
        root: Store,
        txn: str,
        samples: Callable[[Unit], Iterator[Sample | SampleBlock]],
        group_of: Callable[[str], str],
        shard_bytes: int,
        folder: str = FOLDER,
        any_values: bool = False,
    ) -> None:
        """Open nothing yet.

        folder: of the parts and records, in the transaction's folder; a new name ignores earlier parts.
        any_values: as `PartWriter` takes it.
        """
        self._any_values = any_values
        self._root, self._txn, self._samples, self._folder = root, txn, samples, folder
        self._group_of, self._shard_bytes = group_of, shard_bytes

    def __call__(self, unit: Unit) -> WrittenUnit[Unit]:
        """Return the parts of a unit: several if its samples differ in fields, or exceed a shard.

        Raises: as the samples; StoreError.
        """
        note = f"data/{self._txn}/{self._folder}/{unit.name}.json"
        try:
            rows = parse_json_object(self._root.get(note).data)["parts"]
            parts = [Part.from_json(part) for part in rows]
            return WrittenUnit(unit, parts, 0, len(parts))
        except (ObjectNotFound, DamagedJson, InvalidSample, KeyError, TypeError):
            pass  # not written yet, or not to its end
        parts_now: list[_OpenPart] = []
        opened: dict[tuple[str, ...], _OpenPart] = {}
        try:
            for sample in self._samples(unit):
                kind = tuple(sorted(sample.fields))
                if kind in opened and opened[kind].nbytes >= self._shard_bytes:
                    opened.pop(kind).finish(noted=True)
                if kind not in opened:
                    if len(opened) == MOST_OPEN:
                        opened.pop(next(iter(opened))).finish(noted=True)
                    name = f"{unit.name}_{len(parts_now)}" if parts_now else unit.name
                    parts_now.append(self._open(name))
                    opened[kind] = parts_now[-1]
                opened[kind].add(sample)
            parts = [part.finish() for part in parts_now]
        finally:
            for part in parts_now:
                part.close()
        self._root.put(note, canonical_json({"parts": [part.to_json() for part in parts]}))
        skipped = sum(part.was_there for part in parts_now)
        return WrittenUnit(unit, parts, sum(part.nbytes for part in parts_now if not part.was_there), skipped)

    def _open(self, name: str) -> "_OpenPart":
        writer = PartWriter(
            self._root,
            txn=self._txn,
            attempt=self._folder,
            name=name,
            group_of=self._group_of,
            any_values=self._any_values,
        )
        return _OpenPart(self._root, f"data/{self._txn}/{self._folder}/{name}.part.json", writer)


def in_order(written: Iterable[WrittenUnit[Unit]]) -> list[WrittenUnit[Unit]]:
    """Return units by their numbers. A unit written again replaces the first."""
    last = dict[str, WrittenUnit[Unit]]()
    for unit in sorted(written, key=lambda item: item.unit.name.endswith(RENAMED)):
        last[unit.unit.name.removesuffix(RENAMED)] = unit
    return [last[name] for name in sorted(last, key=lambda name: (len(name), name))]


def delete_units(root: Store, txn: str, names: Collection[str]) -> None:
    """Delete the parts and records of units that no version uses. If the store refuses, a collector deletes them.

    A takedown searches unused objects by the keys of its samples, which are different in these parts. Raises:
    StoreError if they cannot be listed.
    """
    there = list_in_place(root, f"data/{txn}/{FOLDER}/", f"data/{txn}/")
    keys = [info.key for info, is_link in there if not is_link and _unit_of(info.key) in names]
    with suppress(StoreError):  # a writer may have no right to delete, or an object lock keeps them
        # parts go first: no record may list a deleted part
        delete_in_place(root, sorted(keys, key=lambda key: not key.endswith(".json")), f"data/{txn}/")


def _unit_of(key: str) -> str:
    """Return the unit of a part's object, or of a record."""
    part = key.rpartition("/")[2].partition(".")[0].rpartition("-")[2]
    return part.partition("_")[0]


class _OpenPart:
    """A part that is being written, or was written by an earlier run."""

    def __init__(self, root: Store, note: str, writer: PartWriter) -> None:
        self._root, self._note, self._writer = root, note, writer
        self._part: Part | None = None
        self.nbytes = 0
        self._waiting, self._n_waiting = list[Sample](), 0
        with suppress(ObjectNotFound, DamagedJson, InvalidSample):  # not written yet, or not to its end
            self._part = Part.from_json(parse_json_object(root.get(self._note).data))
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
        """Write the waiting samples: several as one block, a single one piece by piece."""
        if len(self._waiting) > 1:
            self._writer.add_block(block_of(self._waiting))
        elif self._waiting:
            self._writer.add(self._waiting[0])
        self._waiting, self._n_waiting = [], 0

    def finish(self, noted: bool = False) -> Part:
        if self._part is None:
            self._write()
            self._part = self._writer.finish()
            if noted:
                self._root.put(self._note, canonical_json(self._part.to_json()))
        return self._part

    def close(self) -> None:
        self._writer.close()
