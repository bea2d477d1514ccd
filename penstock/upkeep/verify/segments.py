"""Verify objects under `search/`: records of indexes, and segments against their digests."""

from loader.dataset.log.state import State
from loader.dataset.search.how import parse_how
from loader.dataset.search.segment_reads import parse_segment
from loader.storage import Store

from ...search.make import kind_of
from ..gc.derived_segments import is_record, segment_kind

_AGAIN = "delete it, and run penstock index again"


def search_problem(store: Store, key: str, data: bytes, state: State) -> str:
    """Return the problem with an object under `search/`; "" for none. Reads a segment's record too.

    Raises: Corrupt and others, which are problems too.
    """
    if is_record(key):
        parse_how(data, key)
        return ""
    if segment_kind(key) is None or key.count("/") != 2:
        return "no index has an object of this name: look at it, then move or delete it"
    folder, _, _ = key.rpartition("/")
    how_path = f"{folder}/how.json"
    how = parse_how(store.get(how_path).data, how_path)
    kind = kind_of(how)
    if not key.endswith(kind.ending):
        return f"it is no segment of {how.field!r}, which {how_path} names; {_AGAIN}"
    parse_segment(data, key, kind)
    return ""
