"""Read JSON objects of a run's record, which any writer of `trainings/` may have made."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from loader.dataset.log.entries import DAMAGED
from loader.errors import Corrupt
from loader.json_text import parse_json_object
from loader.keywords import is_whole_number
from loader.storage import Store

MOST_JSON_BYTES = 2**20
"""Larger objects are not read: their facts are numbers and names."""
LIMIT = 2**62
"""Numbers in a record are below this limit, so sums of times fit into 64 bits."""
T = TypeVar("T")


def read_object(
    store: Store,
    key: str,
    what: str,
    parse: Callable[[dict[str, Any]], T],
    *,
    nbytes: int | None = None,
    most: int = MOST_JSON_BYTES,
) -> T:
    """Return what `parse` makes of a stored JSON object.

    nbytes: Its size by a listing; None asks the store. most: Bytes above which it is not read.

    Raises: Corrupt, which names it; ObjectNotFound.
    """
    size = store.head(key).nbytes if nbytes is None else nbytes
    if size > most:
        message = (
            f"{store.url}/{key} is not a valid {what}: it has {size:,} bytes; accepted: at most {most:,}"
        )
        raise Corrupt(message, what=what, where=f"{store.url}/{key}", given=size, accepted=most)
    data = store.get(key).data
    try:
        return parse(parse_json_object(data))
    except DAMAGED as error:
        raise Corrupt(
            f"{store.url}/{key} is not a valid {what}: {error or type(error).__name__}",
            what=what,
            where=f"{store.url}/{key}",
            given=str(error) or type(error).__name__,
        ) from error


def whole_number(body: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a number of a record, below `LIMIT`. Raises: ValueError."""
    value = body.get(name, default)
    if not is_whole_number(value, 0, LIMIT - 1):
        raise ValueError(f"{name} = {value!r}")
    return value
