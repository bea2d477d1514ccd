"""Sort imported samples by their keys' hashes, through scratch, which holds them all."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loader.dataset.columnar.column_names import duplicate_key
from loader.dataset.names import key_hash
from loader.dataset.writing.spill import Sample, Spill

from ...progress import progress
from ..registration.groups import groups_of
from ..registration.shard_rows import Rows
from ..unit_threads import in_threads
from .read_units import ReadUnit, UnitReader


class Spilled:
    """Samples of units on scratch; `close` deletes them. Memory: 100 bytes per sample, and 256 MiB."""

    def __init__(self) -> None:
        self._spill = Spill()
        self._lock, self._seen = threading.Lock(), set[bytes]()
        self.kinds: dict[tuple[str, ...], Rows] = {}
        self.twice: dict[str, str] = {}

    def add(self, sample: Sample) -> None:
        """Add a sample; if its key exists, remember only the key."""
        hashed, kind = key_hash(sample.key), tuple(sorted(sample.fields))
        with self._lock:
            if hashed in self._seen:
                self.twice[sample.key] = sample.source["raw_key"]
                return
            self._seen.add(hashed)
            if kind not in self.kinds:
                self.kinds[kind] = Rows(kind, [sample.key], [sample.source["raw_key"]])
            self._spill.add(sample)

    def drain(self) -> Iterator[Sample]:
        """Yield the samples once, in the order of their keys' hashes. Raises: StoreError."""
        return self._spill.drain()

    def group_of(self, known: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """Return field -> its group. known: groups of the dataset. Raises: FieldMismatch, as `groups_of`."""
        return groups_of([self.kinds[kind] for kind in sorted(self.kinds)], known)

    def close(self) -> None:
        """Delete the files."""
        self._spill.close()


def spilled(reader: UnitReader, units: Sequence[ReadUnit], workers: int, failures: list[str]) -> Spilled:
    """Return the samples of all units. If keys repeat, they are read twice. Errors are appended to `failures`.

    Raises: DuplicateKey for a key that one object has twice; StoreError for full scratch.
    """
    twice: dict[str, str] = {}
    for _ in range(2):
        samples = Spilled()
        try:
            _read(replace(reader, twice=frozenset(twice)), units, samples, workers, failures)
        except BaseException:
            samples.close()
            raise
        if failures or not samples.twice:
            return samples
        samples.close()
        twice = samples.twice
    key, of = min(twice.items())
    raise duplicate_key(key, of)


def _read(
    reader: UnitReader, units: Sequence[ReadUnit], into: Spilled, workers: int, failures: list[str]
) -> None:
    def read(unit: ReadUnit) -> ReadUnit:
        for sample in reader(unit):
            into.add(sample)
        return unit

    finished = in_threads(read, units, workers, failures)
    for _ in progress(finished, "read", lambda unit: unit.size, sum(unit.size for unit in units)):
        pass
