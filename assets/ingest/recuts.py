"""Batches to be cut again: since they were cut, another one with the same bytes or other new classes was published.

tables/<dataset>/cut_again/<batch>/<transaction>.json      a note of the release, until the batch is cut again
"""

from collections.abc import Iterator

from loader.errors import AlreadyExists
from loader.storage import Store
from penstock.stages import check_partition


def note(store: Store, dataset: str, batch: str, txn: str) -> None:
    """Ask for a batch whose parts are in this transaction; asking twice is asking once. Raises: StoreError."""
    try:
        store.put_if_absent(_key(dataset, batch, txn), b"{}\n")
    except AlreadyExists:
        return


def noted(store: Store, dataset: str) -> Iterator[tuple[str, str]]:
    """Yield (batch, transaction) of every note: one listing. Raises: StoreError."""
    for info in store.list(_folder(dataset)):
        batch, _, name = info.key.removeprefix(_folder(dataset)).partition("/")
        yield batch, name.removesuffix(".json")


def clear(store: Store, dataset: str, batch: str, txn: str) -> None:
    """Delete the note: the batch was cut again. Raises: StoreError."""
    store.delete_many([_key(dataset, batch, txn)])


def _folder(dataset: str) -> str:
    return f"tables/{dataset}/cut_again/"


def _key(dataset: str, batch: str, txn: str) -> str:
    return f"{_folder(dataset)}{check_partition(batch)}/{txn}.json"
