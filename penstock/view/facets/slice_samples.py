"""The samples of a stored slice, as pages look for them."""

import loader
from loader.dataset.tables.slice_record import SliceRecord
from loader.dataset.versions.slice_members import slice_ordinals
from loader.errors import FieldNotFound

from .column_codes import Int64s
from .version_filter import check_limit


def check_rule(record: SliceRecord) -> None:
    """Raise FieldNotFound if a slice is a rule beyond a page's limits."""
    if record.kind == "rule":
        check_limit(record.where, "rule")


def page_slice_ordinals(version: "loader.Version", record: SliceRecord) -> Int64s:
    """Return the int64 live ordinals of a slice's samples in a version, ascending.

    A plan may have longer rules than a page: polars takes minutes for some of them. Raises: FieldNotFound, which names
    the slice; Corrupt.
    """
    try:
        check_rule(record)
        return slice_ordinals(version, record)
    except FieldNotFound as error:
        raise FieldNotFound(f"the slice {record.full_name}: {error}") from error
