"""Verify objects under `search/` and `maps/`: records, and segments against their digests."""

from loader.dataset.log.state import State
from loader.dataset.search.index_record import parse_index_record
from loader.dataset.search.segment_reads import parse_segment
from loader.storage import Store

from ...search.map.stored_fit import FOLDER as MAPS
from ...search.map.stored_fit import parse_fit
from ..gc.derived_segments import is_record, read_kind, segment_kind

_AGAIN = "delete it, and run penstock index again"


def segment_problem(store: Store, key: str, data: bytes, state: State) -> str:
    """Return the problem with an object under `search/` or `maps/`; "" for none. Reads a segment's record too.

    Raises: Corrupt and others, which are problems too.
    """
    if is_record(key):
        if key.startswith(MAPS):
            parse_fit(data, key)
        else:
            parse_index_record(data, key)
        return ""
    by_name = segment_kind(key)
    if key.count("/") != 2 or by_name is None:
        return "no index or map has an object of this name: look at it, then move or delete it"
    kind = read_kind(store, key)
    if by_name.name != kind.name:
        return f"it is not a segment of its folder, whose segments end in {kind.ending}; {_AGAIN}"
    parse_segment(data, key, kind)
    return ""
