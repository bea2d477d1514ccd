"""A mirror's collector: it deletes what its primary's has deleted, once nobody who reads the mirror needs it."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from loader.storage import Store

from .swept import read_swept


def swept_by_primary(store: Store) -> Callable[[pa.Table], pa.Table]:
    """What of a piece of the plan stands in the primary's record, which a migration copies to the mirror. Reads all of
    the record; 0.1 KB of memory per object in it. Raises: Corrupt; FormatTooNew."""
    keys = [table["key"].cast(pa.large_string()).combine_chunks() for table in read_swept(store)]
    swept = pa.concat_arrays(keys) if keys else pa.array([], pa.large_string())

    def deleted_there(condemned: pa.Table) -> pa.Table:
        return condemned.filter(pc.is_in(condemned["key"], value_set=swept))

    return deleted_there


class PrimaryRecord:
    """Where a mirror's sweeps are on record: in that of its primary, before they happen."""

    def append(self, condemned: pa.Table, at_us: int) -> str:
        """Nothing to add."""
        return ""
