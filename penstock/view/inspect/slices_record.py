"""Slices of a root, and one slice as a version has it."""

from collections.abc import Mapping
from dataclasses import dataclass

import loader
from loader.dataset.slice_samples import sample_keys
from loader.dataset.slices import list_slices
from loader.dataset.tables.slice_record import SliceRecord, read_slice, slice_numbers
from loader.dataset.versions.slice_members import missing_keys
from loader.errors import SliceNotFound

from ..facets.slice_samples import page_slice_ordinals
from ..json_record import JsonRecord
from .slice_trainings import SliceTrainings, TrainedSlices

MOST_SLICES = 100
"""Most slices on a page."""
MOST_SAMPLES = 200
"""Most samples listed of a slice, and most missing ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesRecord(JsonRecord):
    """Slices of a root."""

    slices: tuple[SliceRecord, ...]
    """Newest number of each slice that is not removed, by dataset and name."""
    first: int
    """Slices that were written later and stand on earlier pages."""
    n_unread: int
    """All slices of other pages, removed ones among them."""
    newest: Mapping[str, int]
    """Dataset -> its newest version."""
    damaged: Mapping[str, str]
    """Path of a damaged record -> what is wrong with it."""
    trained: TrainedSlices
    """Trainings that used the slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePageRecord(JsonRecord):
    """The newest number of a slice, and what a version has of it."""

    slice: SliceRecord
    numbers: tuple[int, ...]
    """All numbers of the slice, ascending."""
    version: str
    """Version in which its samples are looked for, such as `photos@8`."""
    n_samples: int
    """Samples that this version has; 0 of a removed slice."""
    samples: tuple[tuple[int, str], ...]
    """(ordinal, key) of the first 200."""
    n_missing: int
    """Samples of a list that this version lacks."""
    missing: tuple[str, ...]
    """Keys of the first 200 of them."""


def slices_record(
    root: loader.Root,
    trainings: SliceTrainings,
    first: int = 0,
) -> SlicesRecord:
    """Return a page of the root's slices, those saved last first. first: number of slices on earlier pages.

    Costs a listing, and a request a slice; and as `SliceTrainings.trained`.
    """
    listing = list_slices(root, most=MOST_SLICES, first=first)
    newest = {}
    for one_slice in listing.slices:
        version = root.state.newest(one_slice.dataset)
        if version is not None:
            newest[one_slice.dataset] = version.number
    return SlicesRecord(
        slices=listing.slices,
        first=first,
        n_unread=len(listing.unread),
        newest=newest,
        damaged=listing.damaged,
        trained=trainings.trained(root),
    )


def slice_page_record(version: loader.Version, name: str) -> SlicePageRecord:
    """Return a slice of the version's dataset. Raises: SliceNotFound; InvalidName; Corrupt."""
    numbers = slice_numbers(version.store, version.dataset, name)
    if not numbers:
        raise SliceNotFound(
            f"{version.store.url} has no slice {version.dataset}/{name}; the page of slices lists them"
        )
    record = read_slice(version.store, version.dataset, name, numbers[-1])
    n_samples = 0
    samples: list[tuple[int, str]] = []
    missing: list[str] = []
    if not record.removed:
        ordinals = page_slice_ordinals(version, record)
        n_samples = len(ordinals)
        listed = ordinals[:MOST_SAMPLES]
        keys = sample_keys(version, listed)
        samples = list(zip(listed.tolist(), keys, strict=True))
        missing = missing_keys(version, record)
    return SlicePageRecord(
        slice=record,
        numbers=tuple(numbers),
        version=version.name,
        n_samples=n_samples,
        samples=tuple(samples),
        n_missing=len(missing),
        missing=tuple(missing[:MOST_SAMPLES]),
    )
