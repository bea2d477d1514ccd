"""The log of a Delta table, as far as it says which files hold its live rows.

Commits are JSON lines of actions, one file per version. A checkpoint is Parquet with all that the commits before it add
up to. So the newest checkpoint and the commits behind it are read: memory is that of the table's file names.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from loader.errors import Corrupt, InvalidStore
from loader.json_text import DamagedJson, parse_json_object
from loader.limits import MAX_LOG_LINE_BYTES, beyond
from loader.storage import ObjectInfo, Store

from ..reading.object_file import opened

LOG = "_delta_log/"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_COLUMNS = ("add", "protocol", "metaData")
File = tuple[str, str]
"""(path as the log writes it, id of its deletion vector or "")."""


def live_keys(
    store: Store, folder: str, log: Sequence[ObjectInfo], there: Collection[str], way_out: str
) -> set[str]:
    """Return the keys of a table's live files.

    folder: of the table, "" or ending in "/". log: the objects of its log. there: keys of its Parquet files.
    way_out: what to do with a table whose rows cannot be told by its files.

    Raises: InvalidStore for such a table; Corrupt for a log that is not whole; StoreError.
    """
    name = f"{store.url}/{folder}{LOG}"
    reader = _Log(store, name, way_out)
    commits, checkpoint, number = _newest(log)
    for info in checkpoint:
        reader.read_checkpoint(info)
    wanted = range(number + 1, max(commits, default=number) + 1)
    if missing := [one for one in wanted if one not in commits]:
        raise Corrupt(
            f"{name} has no commit {missing[0]} behind its checkpoint {max(number, 0)}, so its live files are not "
            f"known: fetch the whole log; {way_out}"
        )
    for one in wanted:
        reader.read_commit(commits[one])
    keys = {f"{folder}{reader.path_of(one)}" for one in reader.live}
    if lost := sorted(keys - set(there)):
        raise Corrupt(
            f"{name} lists {lost[0]} ({len(lost)} such), and it is not there; fetch the table whole"
        )
    return keys


def _newest(log: Sequence[ObjectInfo]) -> tuple[dict[int, ObjectInfo], list[ObjectInfo], int]:
    """Return the commits by number, the files of the newest whole checkpoint, and its number (-1 without one)."""
    commits = dict[int, ObjectInfo]()
    parts: dict[tuple[int, int], dict[int, ObjectInfo]] = {}
    for info in log:
        file = info.key.rpartition("/")[2]
        if found := _COMMIT.fullmatch(file):
            commits[int(found[1])] = info
        elif found := _CHECKPOINT.fullmatch(file):
            number, part, of = int(found[1]), int(found[2] or 1), int(found[3] or 1)
            parts.setdefault((number, of), {})[part] = info
    whole = [(number, of) for (number, of), some in parts.items() if len(some) == of]
    if not whole:
        return commits, [], -1
    newest = max(whole)
    return commits, [parts[newest][part] for part in sorted(parts[newest])], newest[0]


class _Log:
    """Live files, action by action."""

    def __init__(self, store: Store, name: str, way_out: str) -> None:
        self._store, self._name, self._way_out = store, name, way_out
        self._live: dict[File, None] = {}

    @property
    def live(self) -> list[str]:
        """Paths of the live files. Raises: InvalidStore where rows of one are deleted in place."""
        for path, vector in self._live:
            if vector:
                raise self._refused(f"rows of {path} are deleted in place (deletion vectors)")
        return [path for path, _ in self._live]

    def path_of(self, path: str) -> str:
        """Return the path below the table's folder. Raises: InvalidStore for a file elsewhere."""
        plain = unquote(path)
        if "://" in plain or plain.startswith(("/", "../")) or "/../" in plain:
            raise self._refused(f"its file {path} lies elsewhere")
        return plain

    def read_checkpoint(self, info: ObjectInfo) -> None:
        """Take the files of a checkpoint. Raises: Corrupt; InvalidStore; StoreError."""
        with opened(self._store, info) as file:
            reader = pq.ParquetFile(pa.PythonFile(file, "r"), pre_buffer=False)
            columns = [name for name in reader.schema_arrow.names if name in _COLUMNS]
            for batch in reader.iter_batches(batch_size=1024, columns=columns, use_threads=False):
                for row in batch.to_pylist():
                    self._take(row)

    def read_commit(self, info: ObjectInfo) -> None:
        """Take the actions of a commit. Raises: Corrupt; InvalidStore; StoreError."""
        for number, line in enumerate(self._lines(info)):
            if line.strip():
                try:
                    self._take(parse_json_object(line))
                except (DamagedJson, KeyError, TypeError, AttributeError) as error:
                    raise Corrupt(
                        f"{self._store.url}/{info.key}, line {number + 1} is no action of a Delta log: {error!r}"
                    ) from error

    def _lines(self, info: ObjectInfo) -> Iterator[bytes]:
        rest = b""
        with opened(self._store, info) as file:
            while data := file.read(2**20):
                *lines, rest = (rest + data).split(b"\n")
                yield from lines
                if len(rest) > MAX_LOG_LINE_BYTES:
                    raise Corrupt(beyond(f"{file.path}: a line", len(rest), "bytes", MAX_LOG_LINE_BYTES))
        yield rest

    def _take(self, action: Mapping[str, Any]) -> None:
        if removed := action.get("remove"):
            self._live.pop(_file_of(removed), None)
        if added := action.get("add"):
            self._live[_file_of(added)] = None
        if protocol := action.get("protocol"):
            if int(protocol["minReaderVersion"]) > 3:
                raise self._refused(f"it asks for readers of version {protocol['minReaderVersion']}")
            if "v2Checkpoint" in (protocol.get("readerFeatures") or ()):
                raise self._refused("its checkpoints are of the second kind (v2Checkpoint)")
        if told := action.get("metaData"):
            mode = dict(told.get("configuration") or {}).get("delta.columnMapping.mode", "none")
            if mode != "none":
                raise self._refused(f"its files have other names of columns (columnMapping.mode={mode})")

    def _refused(self, why: str) -> InvalidStore:
        return InvalidStore(f"{self._name} is the log of a Delta table, and {why}: {self._way_out}")


def _file_of(action: Mapping[str, Any]) -> File:
    vector = action.get("deletionVector") or {}
    told = [
        str(vector[name])
        for name in ("storageType", "pathOrInlineDv", "offset")
        if vector.get(name) is not None
    ]
    return str(action["path"]), " ".join(told)
