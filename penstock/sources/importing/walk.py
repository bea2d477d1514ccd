"""The walk over the objects of a place before their bytes are copied, and units that do not wait for its end."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from loader.errors import PenstockError
from loader.foreign.earlier import Difference
from loader.foreign.formats.sample import Found
from loader.foreign.groups import COMMON, groups_of
from loader.foreign.shard_rows import Rows, Shard, keys_of, rows_of

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
        self, found: Found, shards: Sequence[Shard], without: Sequence[str], since: Difference, groups: Groups
    ) -> None:
        """Begin. without: fields that are left out. since: of the dataset's earlier samples, whose keys are taken."""
        self._found, self._without, self._since, self._groups = found, without, since, groups
        self._failures = list[str]()
        self.nbytes = sum(shard.nbytes for shard in shards)
        """Bytes of the shards."""
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="penstock-walk")
        self._ended = list[Future[Any]]()
        self._walks = [self._pool.submit(self._walk, shard) for shard in shards]
        for walk in self._walks:
            walk.add_done_callback(self._ended.append)

    def __enter__(self) -> "Walk":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def in_order(self) -> Iterator[tuple[Shard, Rows]]:
        """Yield the rows of each shard, each as soon as they and those before are there."""
        for walk in self._walks:
            yield from walk.result()

    def failed(self) -> list[str]:
        """Return the errors of shards that cannot be read. Waits for all."""
        return self._failures if self.walked is not None else []

    @property
    def has_failed(self) -> bool:
        """True where it is known that a shard cannot be read."""
        return bool(self._failures)

    @property
    def is_over(self) -> bool:
        """True where nothing is waited for any more."""
        return len(self._ended) == len(self._walks)

    @cached_property
    def walked(self) -> list[tuple[Shard, Rows]]:
        """All rows. Waits for them."""
        return [*self.in_order()]

    @cached_property
    def layout(self) -> Layout:
        """Names of all rows. Waits for them. Raises: InvalidKey; FieldMismatch."""
        rows = [one for _, one in self.walked]
        return Layout(keys_of(rows, self._since.keys), groups_of(rows, self._groups))

    def shuffled(self, shard_bytes: int) -> list[Unit]:
        """Return units of all samples in the order of their keys' hashes. Raises: as `layout`."""
        return units_of(samples_in(self.walked, self.layout.keys), shard_bytes)

    def _walk(self, shard: Shard) -> list[tuple[Shard, Rows]]:
        try:
            some = rows_of(shard, [self._found.samples(info) for info in shard.infos], self._without)
            return [(shard, rows) for rows in some]
        except PenstockError as error:
            self._failures.append(str(error))
            return []


class UnitsAhead:
    """Units of samples in the order of their objects, each as soon as its shard and those before are walked.

    Names follow from all samples. Until the walk is over they are guessed as most places have them. Keys repeat in no
    other shard. Fields belong to the groups that the dataset has, or to the common one.
    """

    def __init__(self, walk: Walk, groups: Groups, shard_bytes: int) -> None:
        self._walk, self._shard_bytes = walk, shard_bytes
        self._known = {name: group for group, body in groups.items() for name in body["field_nbytes"]}
        self._cut = list[tuple[Unit, int, int]]()
        """Each unit under guessed names, with the number of its run, and of its first sample in the run."""

    def group_of(self, field: str) -> str:
        """Return the group that is guessed for a field."""
        return self._known.get(field, COMMON)

    def __iter__(self) -> Iterator[Unit]:
        """Yield the units under guessed names, until a shard cannot be read.

        Units whose names are known to be others are left out.
        """
        for run, (shard, rows) in enumerate(self._walk.in_order()):
            start, (keys,) = 0, keys_of([rows], ())
            for some in cut(samples_in([(shard, rows)], [keys]), self._shard_bytes):
                if self._walk.has_failed:
                    return
                nbytes = shard.nbytes * len(some) // len(keys)
                self._cut.append(one := (Unit(len(self._cut), some, nbytes), run, start))
                start += len(some)
                if not self._walk.is_over or self._has_its_names(*one):
                    yield one[0]

    def others(self) -> list[Unit]:
        """Return the units with other names than guessed, under those. Waits for the walk. Raises: as `Walk.layout`."""
        return [
            replace(unit, rows=replace(unit.rows, keys=self._keys(unit, run, start)), renamed=True)
            for unit, run, start in self._cut
            if not self._has_its_names(unit, run, start)
        ]

    def _keys(self, unit: Unit, run: int, start: int) -> Sequence[str]:
        return self._walk.layout.keys[run][start : start + len(unit.rows)]

    def _has_its_names(self, unit: Unit, run: int, start: int) -> bool:
        group_of = self._walk.layout.group_of
        return all(group_of[name] == self.group_of(name) for name in unit.rows.fields) and [
            *self._keys(unit, run, start)
        ] == [*unit.rows.keys]
