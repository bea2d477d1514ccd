"""Scan a source's objects for samples, and cut these into units before the scan ends."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from loader.errors import FieldMismatch, PenstockError
from loader.storage.threads import DaemonPool

from ..reading.sample import NO_METADATA, ForeignShard, FoundObjects
from ..registration.shard_rows import Rows, agree, field_groups, group_guessed, part_keys, shard_rows
from ..registration.source_difference import PlaceDifference
from ..registration.taken_down import TakenDown
from .spans import SpanUnit, cut, span_samples, span_units

AT_ONCE = 16
"""Shards scanned concurrently."""
Groups = Mapping[str, Mapping[str, Any]]
"""Groups in the dataset's newest manifest."""


class SampleNames(NamedTuple):
    """Keys and groups, which depend on all samples."""

    keys: Sequence[Sequence[str]]
    """Keys in the version, per run."""
    group_of: Mapping[str, str]
    """Field name -> group."""


class Walk:
    """Threaded scan of foreign shards; a context manager."""

    def __init__(
        self,
        objects: FoundObjects,
        shards: Sequence[ForeignShard],
        without: Sequence[str],
        changes: PlaceDifference,
        groups: Groups,
        columns: Mapping[str, Mapping[str, Any]] = NO_METADATA,
        taken_down: TakenDown | None = None,
    ) -> None:
        """Start the threads.

        changes: those since the newest version; its `keys` are in use. columns: its columns.
        taken_down: samples to leave out.
        """
        self._objects = objects
        self._without = without
        self._changes = changes
        self._groups = groups
        self._columns = columns
        self._taken_down = taken_down
        self._failures: list[str] = []
        self.nbytes = sum(shard.nbytes for shard in shards)
        self._ended: list[ForeignShard] = []
        self._pool = DaemonPool(AT_ONCE, "penstock-walk")
        self._walks: list[Future[list[tuple[ForeignShard, Rows]]]] = [
            self._pool.submit(self._walk, shard) for shard in shards
        ]

    def __enter__(self) -> "Walk":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.dismiss()

    def in_order(self) -> Iterator[list[tuple[ForeignShard, Rows]]]:
        """Yield each shard's rows, in order, as soon as known."""
        for walk in self._walks:
            yield walk.result()

    def failed(self) -> list[str]:
        """Errors of unreadable shards. Waits for all shards."""
        for walk in self._walks:
            walk.result()  # a shard's thread adds its failure before it ends
        return self._failures

    @property
    def has_failed(self) -> bool:
        """True if a shard failed so far."""
        return bool(self._failures)

    @property
    def is_over(self) -> bool:
        """True if every shard is scanned or has failed."""
        return len(self._ended) == len(self._walks)

    @cached_property
    def walked(self) -> list[tuple[ForeignShard, Rows]]:
        """All rows. Waits for all shards."""
        return list(chain.from_iterable(self.in_order()))

    @cached_property
    def layout(self) -> SampleNames:
        """Names of all rows. Waits for all shards."""
        rows = [one for _, one in self.walked]
        return SampleNames(part_keys(rows, self._changes.keys), field_groups(rows, self._groups))

    def shuffled(self, shard_bytes: int) -> list[SpanUnit]:
        """Return units by key hash. Waits for all shards."""
        if self._objects.members is not None:
            agree([rows for _, rows in self.walked], self._objects.members, self._columns)
        return span_units(span_samples(self.walked, self.layout.keys), shard_bytes)

    def _walk(self, shard: ForeignShard) -> list[tuple[ForeignShard, Rows]]:
        try:
            samples = [self._objects.samples(info) for info in shard.infos]
            runs = shard_rows(shard, samples, self._without)
            if self._taken_down is not None:
                runs = [self._taken_down.without_samples(rows) for rows in runs]
            return [(shard, rows) for rows in runs if len(rows.source_keys)]
        except PenstockError as error:
            self._failures.append(str(error))
            return []
        finally:
            self._ended.append(shard)


class UnitsAhead:
    """Units in the order of their objects, available as soon as these are scanned.

    Until the scan ends, names are guesses: no repeated keys, and groups by `group_guessed`.
    """

    def __init__(self, walk: Walk, groups: Groups, shard_bytes: int) -> None:
        self._walk = walk
        self._groups = groups
        self._shard_bytes = shard_bytes
        self.group_of = group_guessed(groups)
        self._cut = list[tuple[SpanUnit, int, int]]()
        """Each unit with guessed names, its run's index, and its first sample's index there."""

    def __iter__(self) -> Iterator[SpanUnit]:
        """Yield units with guessed names, until a shard is unreadable or lacks fields of a group."""
        run = 0
        for runs in self._walk.in_order():
            n = sum(len(rows.source_keys) for _, rows in runs)
            for shard, rows in runs:
                if not self._fits(rows):
                    return  # the complete scan raises the error
                (keys,) = part_keys([rows], ())
                start = 0
                for samples in cut(span_samples([(shard, rows)], [keys]), self._shard_bytes):
                    # In this order: if the scan is over, all its failures are listed.
                    is_over = self._walk.is_over
                    if self._walk.has_failed:
                        return
                    unit = SpanUnit(len(self._cut), samples, shard.nbytes * len(samples) // n)
                    self._cut.append((unit, run, start))
                    if not is_over or self._has_its_names(unit, run, start):
                        yield unit
                    start += len(samples)
                run += 1

    def others(self) -> list[SpanUnit]:
        """Return the wrongly guessed units, renamed. Waits for all shards."""
        units = []
        for unit, run, start in self._cut:
            if not self._has_its_names(unit, run, start):
                rows = replace(unit.rows, keys=self._keys(unit, run, start))
                units.append(replace(unit, rows=rows, renamed=True))
        return units

    def _fits(self, rows: Rows) -> bool:
        try:
            return bool(field_groups([rows], self._groups))
        except FieldMismatch:
            return False

    def _keys(self, unit: SpanUnit, run: int, start: int) -> Sequence[str]:
        return self._walk.layout.keys[run][start : start + len(unit.rows)]

    def _has_its_names(self, unit: SpanUnit, run: int, start: int) -> bool:
        group_of = self._walk.layout.group_of
        if any(group_of[name] != self.group_of(name) for name in unit.rows.fields):
            return False
        return list(self._keys(unit, run, start)) == list(unit.rows.keys)
