"""Deletes a piece of a plan, past what cannot be deleted: held, locked, in a folder of another user, behind a link."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from loader.errors import StoreError, Throttled, Transient
from loader.storage import Store
from loader.storage.unfinished import delete_in_place

AT_ONCE = 16


def delete(store: Store, keys: Sequence[str]) -> dict[str, StoreError]:
    """Delete; key -> why of those that the store refuses to. Stores do not tell which of many, so where one is refused
    each is deleted alone: a request per key. Raises: Throttled, Transient, which are the store's and no key's; nothing
    is under way then."""
    if _refused(store, keys) is None:
        return {}
    refused: dict[str, StoreError] = {}
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="penstock-collect") as pool:
        for start in range(0, len(keys), AT_ONCE):
            some = keys[start : start + AT_ONCE]
            answers = pool.map(partial(_refused, store), ([key] for key in some))
            refused |= {key: error for key, error in zip(some, answers, strict=True) if error is not None}
    return refused


def _refused(store: Store, keys: Sequence[str]) -> StoreError | None:
    """Delete; why not, where it cannot be."""
    try:
        delete_in_place(store, keys)
    except (Throttled, Transient):
        raise
    except StoreError as error:
        return error
    return None
