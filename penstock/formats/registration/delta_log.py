"""Read the log of a Delta table, to list the files with its live rows.

A commit is a file of JSON lines, one per action. A checkpoint is Parquet that sums up all commits before it.
Only the newest checkpoint and the later commits are read, so memory grows with the number of files only.
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
"""(path in the log, id of the deletion vector or "")."""


def live_keys(
    store: Store, folder: str, log: Sequence[ObjectInfo], there: Collection[str], way_out: str
) -> set[str]:
    """Return the keys of a table's live files.

    folder: of the table, "" or ending in "/". log: objects of its log. there: keys of its Parquet files.
    way_out: advice for a table whose live rows files cannot tell.

    Raises: InvalidStore for such a table; Corrupt for an incomplete log; StoreError.
    """
    name = f"{store.url}/{folder}{LOG}"
    reader = _Log(store, name, way_out)
    commits, checkpoint, newest = _newest(log)
    for info in checkpoint:
        reader.read_checkpoint(info)
    numbers = range(newest + 1, max(commits, default=newest) + 1)
    if missing := [one for one in numbers if one not in commits]:
        raise Corrupt(
            f"{name} has no commit {missing[0]} behind its checkpoint {max(newest, 0)}, so its live files are not "
            f"known: fetch the whole log; {way_out}"
        )
    for number in numbers:
        reader.read_commit(commits[number])
    keys = {f"{folder}{reader.path_of(one)}" for one in reader.live}
    if lost := sorted(keys - set(there)):
        raise Corrupt(
            f"{name} lists {lost[0]} ({len(lost)} such), and it is not there; fetch the table whole"
        )
    return keys


def _newest(log: Sequence[ObjectInfo]) -> tuple[dict[int, ObjectInfo], list[ObjectInfo], int]:
    """Return the commits by number, the files of the newest complete checkpoint, and its number (-1 for none)."""
    commits = dict[int, ObjectInfo]()
    parts: dict[tuple[int, int], dict[int, ObjectInfo]] = {}
    for info in log:
        file = info.key.rpartition("/")[2]
        if match := _COMMIT.fullmatch(file):
            commits[int(match[1])] = info
        elif match := _CHECKPOINT.fullmatch(file):
            number, part, of = int(match[1]), int(match[2] or 1), int(match[3] or 1)
            parts.setdefault((number, of), {})[part] = info
    whole = [(number, of) for (number, of), files in parts.items() if len(files) == of]
    if not whole:
        return commits, [], -1
    newest = max(whole)
    return commits, [parts[newest][part] for part in sorted(parts[newest])], newest[0]


class _Log:
    """Live files, updated action by action."""

    def __init__(self, store: Store, name: str, way_out: str) -> None:
        self._store, self._name, self._way_out = store, name, way_out
        self._live: dict[File, None] = {}

    @property
    def live(self) -> list[str]:
        """Paths of the live files."""
        for path, vector in self._live:
            if vector:
                raise self._refused(f"rows of {path} are deleted in place (deletion vectors)")
        return [path for path, _ in self._live]

    def path_of(self, path: str) -> str:
        """Return the path below the table's folder."""
        plain = unquote(path)
        if "://" in plain or plain.startswith(("/", "../")) or "/../" in plain:
            raise self._refused(f"its file {path} lies elsewhere")
        return plain

    def read_checkpoint(self, info: ObjectInfo) -> None:
        """Apply the actions of a checkpoint."""
        with opened(self._store, info) as file:
            reader = pq.ParquetFile(pa.PythonFile(file, "r"), pre_buffer=False)
            columns = [name for name in reader.schema_arrow.names if name in _COLUMNS]
            for batch in reader.iter_batches(batch_size=1024, columns=columns, use_threads=False):
                for row in batch.to_pylist():
                    self._take(row)

    def read_commit(self, info: ObjectInfo) -> None:
        """Apply the actions of a commit."""
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
        if metadata := action.get("metaData"):
            mode = dict(metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")
            if mode != "none":
                raise self._refused(f"its files have other names of columns (columnMapping.mode={mode})")

    def _refused(self, why: str) -> InvalidStore:
        return InvalidStore(f"{self._name} is the log of a Delta table, and {why}: {self._way_out}")


def _file_of(action: Mapping[str, Any]) -> File:
    vector = action.get("deletionVector") or {}
    vector_id = [
        str(vector[name])
        for name in ("storageType", "pathOrInlineDv", "offset")
        if vector.get(name) is not None
    ]
    return str(action["path"]), " ".join(vector_id)
