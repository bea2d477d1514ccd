"""Find the files of tables that hold live rows: tables' logs may have removed others.

- Delta: the log in `_delta_log/` lists the live files (`delta_log`).
- Hugging Face: `state.json` of `save_to_disk` lists them. `cache-<fingerprint>.arrow` are results of map and
  filter.
- Iceberg and Hudi: their metadata is not read; such a table is refused by name.
- Hadoop and Spark: names that begin with "_" or "." do not count, except partitions such as `_day=1/`.
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
    """Return whether a key names another tool's own file beside a table."""
    return format in TABULAR and bool(_HIDDEN.search(key) or _DERIVED.search(key))


def table_log(format: str, key: str) -> str:
    """Return the table format whose log contains the object; "" for none, and for other formats."""
    if format not in TABULAR:
        return ""
    return next((name for pattern, name in _LOGS if pattern.match(key)), "")


def live_files(store: Store, format: str, infos: list[ObjectInfo]) -> list[ObjectInfo]:
    """Return the objects, except files of tables without live rows.

    Costs a read of each Delta log since its last checkpoint, and of each `state.json`.

    Raises: InvalidStore for a table whose live rows cannot be found; Corrupt for an incomplete log; StoreError.
    """
    if format not in TABULAR:
        return infos
    for pattern, name in ((_HUDI, "Hudi"), (_ICEBERG, "Iceberg")):
        for info in infos:
            if match := pattern.match(info.key):
                folder = match["folder"]
                raise InvalidStore(
                    f"{store.url}/{folder} is a table of {name} ({info.key}), whose files also hold rows that were "
                    f"deleted or replaced: {_EXPORT.format(format=name.lower(), folder=folder)}"
                )
    dead = _removed(store, infos) | _not_of_state(store, format, infos)
    return [info for info in infos if info.key not in dead and not is_no_table_file(format, info.key)]


def _removed(store: Store, infos: Sequence[ObjectInfo]) -> set[str]:
    """Return the keys of Parquet files in Delta tables without live rows."""
    logs = dict[str, list[ObjectInfo]]()
    for info in infos:
        if match := _DELTA.match(info.key):
            logs.setdefault(match["folder"], []).append(info)
    dead = set[str]()
    for folder, log in logs.items():
        way_out = _EXPORT.format(format="delta", folder=folder)
        there = {info.key for info in infos if info.key.startswith(folder) and info.key.endswith(".parquet")}
        dead |= there - live_keys(store, folder, log, there, way_out)
    return dead


def _not_of_state(store: Store, format: str, infos: Sequence[ObjectInfo]) -> set[str]:
    """Return the keys of Arrow files that the `state.json` of their folder does not list."""
    if format != "arrow":  # `hf` reads these files itself
        return set()
    dead = set[str]()
    for info in infos:
        folder, _, name = info.key.rpartition("/")
        if name != "state.json" or info.nbytes > MAX_STATE_BYTES:
            continue
        try:
            state = parse_json_object(store.get(info.key).data)
            live = {f"{folder}/{one['filename']}".lstrip("/") for one in state["_data_files"]}
        except (DamagedJson, KeyError, TypeError):
            continue  # another tool's file
        dead |= {
            one.key
            for one in infos
            if one.key.endswith(".arrow") and one.key.rpartition("/")[0] == folder and one.key not in live
        }
    return dead
