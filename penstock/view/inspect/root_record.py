"""A root: the runs that left a trail, and the versions of each dataset."""

from collections.abc import Mapping
from dataclasses import dataclass

import loader
from loader.run.trail.read_trail import trail_runs
from loader.storage.mirror.store import primary_of

from ..json_record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLine(Record):
    """A version of a dataset."""

    number: int
    """Number of the version."""
    retired: bool
    """True where it was taken out of use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRecord(Record):
    """A root."""

    root: str
    """URL of the root."""
    runs: tuple[str, ...]
    """Runs that left a trail, sorted."""
    datasets: Mapping[str, tuple[VersionLine, ...]]
    """Dataset -> its versions, the newest first."""


def root_record(root: loader.Root) -> RootRecord:
    """Return the record of a root. Costs its state, and a listing of runs."""
    state = root.state
    return RootRecord(
        root=root.url,
        runs=tuple(trail_runs(primary_of(root.store))),
        datasets={
            name: tuple(
                VersionLine(number=one.number, retired=one.retired is not None)
                for one in reversed(state.versions(name))
            )
            for name in root.datasets()
        },
    )
