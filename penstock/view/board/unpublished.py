"""Datasets that have stage records but no version: their first batch was stopped, or is still being made."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from loader.dataset.names import check_dataset_name
from loader.errors import InvalidName
from loader.storage import Store
from loader.storage.store import list_from

from ...stages import VERDICTS, newest_listed
from ..json_record import JsonRecord
from .dataset_cards import HaltedBatch, halted_batches

FOLDER = "stages/"
MOST_FOLDERS = 64
"""Datasets with stage records that are looked for: a request each."""
MOST_UNPUBLISHED = 12
"""Datasets without a version whose batches are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpublishedDataset(JsonRecord):
    dataset: str
    """Name."""
    stopped: tuple[HaltedBatch, ...]
    """Batches that the gate stopped, the newest first; () if none is published or stopped yet."""


def unpublished_datasets(store: Store, published: Collection[str]) -> tuple[UnpublishedDataset, ...]:
    """Return the datasets without a version, by name. published: names of those with one.

    Costs a request per dataset with stage records, and up to five per dataset without a version.
    """
    datasets = []
    for name in _folders(store):
        if name in published:
            continue
        listed = newest_listed(store, name, VERDICTS)
        stopped = halted_batches(store, listed)
        datasets.append(UnpublishedDataset(dataset=name, stopped=stopped))
        if len(datasets) == MOST_UNPUBLISHED:
            break
    return tuple(datasets)


def _folders(store: Store) -> Iterator[str]:
    """Yield the datasets with stage records, without a listing of all records."""
    after = FOLDER
    for _ in range(MOST_FOLDERS):
        first = next(iter(list_from(store, FOLDER, after)), None)
        if first is None:
            return
        path = first.key.removeprefix(FOLDER)
        name, _, _ = path.partition("/")
        after = f"{FOLDER}{name}0"  # "0" follows "/": the next key is another dataset's
        try:
            yield check_dataset_name(name)
        except InvalidName:  # another program's folder
            continue
