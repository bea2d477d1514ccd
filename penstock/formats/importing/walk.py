"""The walk over the objects of a place before their bytes are copied, and units that do not wait for its end."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from loader.errors import FieldMismatch, PenstockError
from loader.storage.shared.threads import DaemonPool

from ..reading.sample import NO_METADATA, FoundObjects
from ..registration.earlier import Difference
from ..registration.groups import group_guessed, groups_of
from ..registration.shard_rows import Rows, Shard, agree, keys_of, rows_of
from .span_units import Unit, cut, samples_in, units_of

AT_ONCE = 16
"""Shards that are walked together."""
Groups = Mapping[str, Mapping[str, Any]]
"""Groups of the dataset, as its newest manifest has them."""


class Layout(NamedTuple):
    """Names that follow from all samples."""

    keys: Sequence[Sequence[str]]
    """Keys of each run's samples in the version."""
    group_of: Mapping[str, str]
    """Field -> its group."""


class Walk:
    """Rows of shards, walked by threads. To be used in a `with` block."""

    def __init__(
        self,
        found: FoundObjects,
        shards: Sequence[Shard],
        without: Sequence[str],
        since: Difference,
        groups: Groups,
        columns: Mapping[str, Mapping[str, Any]] = NO_METADATA,
    ) -> None:
        """Begin.

        without: fields that are left out. since: of the dataset's earlier samples, whose keys are taken. columns: of
        the dataset, as its newest manifest has them.
        """
        self._columns = columns
        self._found, self._without, self._since, self._groups = found, without, since, groups
        self._failures = list[str]()
        self.nbytes = sum(shard.nbytes for shard in shards)
        """Bytes of the shards."""
        self._pool, self._ended = DaemonPool(AT_ONCE, "penstock-walk"), list[Shard]()
        self._walks: list[Future[list[tuple[Shard, Rows]]]] = [
            self._pool.submit(self._walk, shard) for shard in shards
        ]

    def __enter__(self) -> "Walk":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.dismiss()

    def in_order(self) -> Iterator[list[tuple[Shard, Rows]]]:
        """Yield the rows of each shard, each as soon as they and those before are there."""
        for walk in self._walks:
            yield walk.result()

    def failed(self) -> list[str]:
        """Return the errors of shards that cannot be read. Waits for all."""
        return self._failures if self.walked is not None else []

    @property
    def has_failed(self) -> bool:
        """True where it is known that a shard cannot be read."""
        return bool(self._failures)

    @property
    def is_over(self) -> bool:
        """True where each shard was walked to its end, or has failed: `has_failed` is then known."""
        return len(self._ended) == len(self._walks)

    @cached_property
    def walked(self) -> list[tuple[Shard, Rows]]:
        """All rows. Waits for them."""
        return [one for some in self.in_order() for one in some]

    @cached_property
    def layout(self) -> Layout:
        """Names of all rows. Waits for them. Raises: InvalidKey; FieldMismatch."""
        rows = [one for _, one in self.walked]
        return Layout(keys_of(rows, self._since.keys), groups_of(rows, self._groups))

    def shuffled(self, shard_bytes: int) -> list[Unit]:
        """Return units of all samples in the order of their keys' hashes. Raises: as `layout`.

        Samples of several archives come together: their columns agree first.
        """
        if self._found.members is not None:
            agree([rows for _, rows in self.walked], self._found.members, self._columns)
        return units_of(samples_in(self.walked, self.layout.keys), shard_bytes)

    def _walk(self, shard: Shard) -> list[tuple[Shard, Rows]]:
        try:
            some = rows_of(shard, [self._found.samples(info) for info in shard.infos], self._without)
            return [(shard, rows) for rows in some]
        except PenstockError as error:
            self._failures.append(str(error))
            return []
        finally:
            self._ended.append(shard)


class UnitsAhead:
    """Units of samples in the order of their objects, each as soon as its shard and those before are walked.

    Names follow from all samples. Until the walk is over they are guessed as most places have them. Keys repeat in no
    other shard. Fields belong to the groups of `group_guessed`.
    """

    def __init__(self, walk: Walk, groups: Groups, shard_bytes: int) -> None:
        self._walk, self._groups, self._shard_bytes = walk, groups, shard_bytes
        self.group_of = group_guessed(groups)
        """Field -> the group that is guessed for it."""
        self._cut = list[tuple[Unit, int, int]]()
        """Each unit under guessed names, with the number of its run, and of its first sample in the run."""

    def __iter__(self) -> Iterator[Unit]:
        """Yield the units under guessed names, until a shard cannot be read, or lacks fields of the dataset's groups.

        Units whose names are known to be others are left out.
        """
        run = 0
        for runs in self._walk.in_order():
            n = sum(len(rows.source_keys) for _, rows in runs)
            for shard, rows in runs:
                if not self._fits(rows):
                    return  # told when it is known which shards cannot be read
                start, (keys,) = 0, keys_of([rows], ())
                for some in cut(samples_in([(shard, rows)], [keys]), self._shard_bytes):
                    is_over = self._walk.is_over
                    if self._walk.has_failed:
                        return
                    unit = Unit(len(self._cut), some, shard.nbytes * len(some) // n)
                    self._cut.append(one := (unit, run, start))
                    start += len(some)
                    if not is_over or self._has_its_names(*one):
                        yield unit
                run += 1

    def others(self) -> list[Unit]:
        """Return the units with other names than guessed, under those. Waits for the walk. Raises: as `Walk.layout`."""
        return [
            replace(unit, rows=replace(unit.rows, keys=self._keys(unit, run, start)), renamed=True)
            for unit, run, start in self._cut
            if not self._has_its_names(unit, run, start)
        ]

    def _fits(self, rows: Rows) -> bool:
        try:
            return bool(groups_of([rows], self._groups))
        except FieldMismatch:
            return False

    def _keys(self, unit: Unit, run: int, start: int) -> Sequence[str]:
        return self._walk.layout.keys[run][start : start + len(unit.rows)]

    def _has_its_names(self, unit: Unit, run: int, start: int) -> bool:
        group_of = self._walk.layout.group_of
        return all(group_of[name] == self.group_of(name) for name in unit.rows.fields) and [
            *self._keys(unit, run, start)
        ] == [*unit.rows.keys]
