"""Parts of a work unit of an import, written once: a note beside them says that they are there.

`data/<txn>/imported/<unit>.json` has the parts of a unit, put when all are there. A part of a larger unit is noted when
it is full (`<part>.part.json`): whoever imports the same again reads its samples, and writes it no more.
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
"""Bytes of samples that are written at once; a larger one is written by itself."""
MOST_OPEN = 32
"""Parts of samples with other fields that a unit has open at once."""
RENAMED = "s"
"""Ends the name of a unit whose first name stands for parts with other keys or groups than its samples have."""


class Named(Protocol):
    """A work unit."""

    @property
    def name(self) -> str:
        """Name of the unit in its import, and of its first part."""

    @property
    def size(self) -> int:
        """Its share of the work."""


Unit = TypeVar("Unit", bound=Named)


class Written(NamedTuple, Generic[Unit]):
    """Parts of a unit."""

    unit: Unit
    """The unit."""
    parts: list[Part]
    """Its parts, in the order of their first samples."""
    nbytes: int
    """Bytes of fields that were written now."""
    skipped: int
    """Parts that an earlier run had written."""


class UnitWriter(Generic[Unit]):
    """Writes the parts of units, or finds them; used by many threads."""

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

        folder: of the parts and notes, below the transaction's; another for each try finds none of an earlier.
        any_values: as `PartWriter` takes it.
        """
        self._any_values = any_values
        self._root, self._txn, self._samples, self._folder = root, txn, samples, folder
        self._group_of, self._shard_bytes = group_of, shard_bytes

    def __call__(self, unit: Unit) -> Written[Unit]:
        """Return the parts of a unit: one, or more where its samples differ in fields, or have more than a shard takes.

        Raises: as the samples; StoreError.
        """
        note = f"data/{self._txn}/{self._folder}/{unit.name}.json"
        try:
            told = parse_json_object(self._root.get(note).data)["parts"]
            parts = [Part.from_json(one) for one in told]
            return Written(unit, parts, 0, len(parts))
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
            parts = [one.finish() for one in parts_now]
        finally:
            for one in parts_now:
                one.close()
        self._root.put(note, canonical_json({"parts": [part.to_json() for part in parts]}))
        skipped = sum(one.was_there for one in parts_now)
        return Written(unit, parts, sum(one.nbytes for one in parts_now if not one.was_there), skipped)

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


def in_order(written: Iterable[Written[Unit]]) -> list[Written[Unit]]:
    """Return units by their numbers. One that was written again stands for the first."""
    last = dict[str, Written[Unit]]()
    for one in sorted(written, key=lambda one: one.unit.name.endswith(RENAMED)):
        last[one.unit.name.removesuffix(RENAMED)] = one
    return [last[name] for name in sorted(last, key=lambda name: (len(name), name))]


def delete_units(root: Store, txn: str, names: Collection[str]) -> None:
    """Delete the parts and notes of units that no version is to have; where the store refuses, a collector does.

    A takedown finds what no version names by the keys of the samples, which are others in these parts.
    Raises: StoreError where they cannot be listed.
    """
    there = list_in_place(root, f"data/{txn}/{FOLDER}/", f"data/{txn}/")
    keys = [info.key for info, is_link in there if not is_link and _unit_of(info.key) in names]
    with suppress(StoreError):  # a writer may have no right to delete, or an object lock keeps them
        # a note tells of no part that is gone
        delete_in_place(root, sorted(keys, key=lambda key: not key.endswith(".json")), f"data/{txn}/")


def _unit_of(key: str) -> str:
    """Return the name of the unit of a part's object, or of a note."""
    part = key.rpartition("/")[2].partition(".")[0].rpartition("-")[2]
    return part.partition("_")[0]


class _OpenPart:
    """A part that is written, or that an earlier run has written in full."""

    def __init__(self, root: Store, note: str, writer: PartWriter) -> None:
        self._root, self._note, self._writer = root, note, writer
        self._part: Part | None = None
        self.nbytes = 0
        self._waiting, self._n_waiting = list[Sample](), 0
        with suppress(ObjectNotFound, DamagedJson, InvalidSample):  # not written yet, or not to its end
            self._part = Part.from_json(parse_json_object(root.get(self._note).data))
        self.was_there = self._part is not None

    def add(self, one: Sample | SampleBlock) -> None:
        self.nbytes += one.nbytes
        if self.was_there:
            return
        if isinstance(one, SampleBlock):
            self._writer.add_block(one)
            return
        if self._n_waiting + one.nbytes > BLOCK_BYTES:
            self._write()
        self._waiting.append(one)
        self._n_waiting += one.nbytes

    def _write(self) -> None:
        """Write the samples that wait: many at once, which copies them all; one piece by piece."""
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
