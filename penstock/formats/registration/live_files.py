"""Files of tables that hold no live rows: those that a table's log has removed, and other tools' own files.

Layouts that say which files count:

- Delta: the log in `_delta_log/` lists the live files (`delta_log`).
- Hugging Face: `state.json` of `save_to_disk` lists them. `cache-<fingerprint>.arrow` are results of map and filter.
- Iceberg and Hudi: their metadata are not read here. Such a table is refused by name.
- Hadoop and Spark: nothing counts whose name begins with "_" or ".", but for partitions such as `_day=1/`.
"""

import re
from collections.abc import Sequence

from loader.errors import InvalidStore
from loader.json_text import DamagedJson, parse_json_object
from loader.limits import MAX_STATE_BYTES
from loader.storage import ObjectInfo, Store

from .delta_log import LOG, live_keys

TABULAR = frozenset({"arrow", "csv", "hf", "json", "jsonl", "parquet"})
"""Formats whose objects are files of tables."""
_HIDDEN = re.compile(r"(?:^|/)[_.](?![^/]*=)")
_DERIVED = re.compile(r"(?:^|/)(?:cache-[0-9a-f]{16}(?:_\d{5}_of_\d{5})?\.arrow$|[^/]*\.incomplete/)")
_HUDI = re.compile(r"(?P<folder>(?:.*/)?)\.hoodie/")
_ICEBERG = re.compile(r"(?P<folder>(?:.*/)?)metadata/[^/]*\.metadata\.json(?:\.gz)?$")
_DELTA = re.compile(rf"(?P<folder>(?:.*/)?){LOG}")
_LOGS = ((_DELTA, "Delta"), (_HUDI, "Hudi"), (_ICEBERG, "Iceberg"))
_EXPORT = (
    "export its live rows as Parquet with its own engine (Spark: spark.read.format('{format}').load(...)"
    ".write.parquet(...)), and give that folder; or leave the table out (--exclude '/{folder}**')"
)


def is_no_table_file(format: str, key: str) -> bool:
    """Return whether a file beside those of a table is another tool's own, by its key alone."""
    return format in TABULAR and bool(_HIDDEN.search(key) or _DERIVED.search(key))


def table_log(format: str, key: str) -> str:
    """Return the name of the table format whose log an object belongs to; "" for none, and for other formats."""
    if format not in TABULAR:
        return ""
    return next((name for pattern, name in _LOGS if pattern.match(key)), "")


def live_files(store: Store, format: str, infos: list[ObjectInfo]) -> list[ObjectInfo]:
    """Return the objects but for those that hold no live rows of a table.

    Costs a read of each Delta log, from its last checkpoint on, and of each `state.json`.

    Raises: InvalidStore for a table whose live rows cannot be told; Corrupt for a log that is not whole; StoreError.
    """
    if format not in TABULAR:
        return infos
    for pattern, name in ((_HUDI, "Hudi"), (_ICEBERG, "Iceberg")):
        for info in infos:
            if found := pattern.match(info.key):
                folder = found["folder"]
                raise InvalidStore(
                    f"{store.url}/{folder} is a table of {name} ({info.key}), whose files also hold rows that were "
                    f"deleted or replaced: {_EXPORT.format(format=name.lower(), folder=folder)}"
                )
    gone = _removed(store, infos) | _not_of_state(store, format, infos)
    return [info for info in infos if info.key not in gone and not is_no_table_file(format, info.key)]


def _removed(store: Store, infos: Sequence[ObjectInfo]) -> set[str]:
    """Return the keys of Parquet files in Delta tables that hold no live rows."""
    logs = dict[str, list[ObjectInfo]]()
    for info in infos:
        if found := _DELTA.match(info.key):
            logs.setdefault(found["folder"], []).append(info)
    gone = set[str]()
    for folder, log in logs.items():
        way_out = _EXPORT.format(format="delta", folder=folder)
        there = {info.key for info in infos if info.key.startswith(folder) and info.key.endswith(".parquet")}
        gone |= there - live_keys(store, folder, log, there, way_out)
    return gone


def _not_of_state(store: Store, format: str, infos: Sequence[ObjectInfo]) -> set[str]:
    """Return the keys of Arrow files in folders of `save_to_disk` that their `state.json` does not list."""
    if format != "arrow":  # `hf` reads these files itself
        return set()
    gone = set[str]()
    for info in infos:
        folder, _, name = info.key.rpartition("/")
        if name != "state.json" or info.nbytes > MAX_STATE_BYTES:
            continue
        try:
            told = parse_json_object(store.get(info.key).data)
            live = {f"{folder}/{one['filename']}".lstrip("/") for one in told["_data_files"]}
        except (DamagedJson, KeyError, TypeError):
            continue  # of another tool
        gone |= {
            one.key
            for one in infos
            if one.key.endswith(".arrow") and one.key.rpartition("/")[0] == folder and one.key not in live
        }
    return gone
