"""Verify a stored slice: its record, its table, and that both are of live samples of its version."""

from loader.dataset.log.state import State
from loader.dataset.slice_samples import sample_keys
from loader.dataset.tables.parquet import integers
from loader.dataset.tables.slice_record import parse_slice, path_parts, read_slice_table
from loader.dataset.versions.slice_members import slice_ordinals
from loader.dataset.versions.version import Version
from loader.errors import MissingDependency
from loader.storage import Store


def slice_problem(store: Store, key: str, data: bytes, state: State) -> str:
    """Return the problem with an object under `slices/`; "" for none. A table is checked with its record.

    Costs the table, and its samples' keys; a rule costs a scan. Raises: Corrupt and others, which are problems too.
    """
    if path_parts(key) is None:
        return "no slice has an object of this name: look at it, then move or delete it"
    if key.endswith(".parquet"):
        return ""
    record = parse_slice(data, key)
    version_record = state.by_id(record.version_id)
    if version_record is None or version_record.name != record.version:
        return (
            f"the log has no version {record.version} of the id {record.version_id}: it was copied or forged"
        )
    if record.removed:
        return ""
    if version_record.retired is not None:  # its tables may be deleted
        if record.kind == "list":
            read_slice_table(store, record, ["ordinal"])
        return ""
    version = Version.of_record(store, version_record)
    try:
        ordinals = slice_ordinals(version, record)
    except MissingDependency:  # a rule needs polars
        return ""
    if len(ordinals) != record.n_samples:
        return f"it states {record.n_samples} samples, {record.version} has {len(ordinals)} of them"
    if record.kind == "rule":
        return ""
    table = read_slice_table(store, record, ["ordinal", "key"])
    keys = sample_keys(version, integers(table["ordinal"]))
    if table["key"].to_pylist() != keys:
        return f"{record.table_path} has other keys than {record.version} has of its samples: it was changed"
    return ""
