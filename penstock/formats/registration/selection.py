"""Select a source's objects, and the table files among them that hold live rows.

- Patterns have .gitignore syntax (through pathspec), and match keys.
- Delta: the newest checkpoint (Parquet) and later commits (JSON lines) list the live files.
- Hugging Face: `state.json` of `save_to_disk` lists the live files; `cache-<fingerprint>.arrow` are derived.
- Iceberg and Hudi: rejected, because their metadata is not read.
- Hadoop and Spark: names that start with "_" or "." are ignored, except partitions such as `_day=1/`.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from loader.errors import Corrupt, InvalidStore
from loader.json_text import DamagedJson, parse_json_object
from loader.limits import MAX_LOG_LINE_BYTES, MAX_STATE_BYTES, limit_message
from loader.storage import ObjectInfo, Store
from loader.storage.store import Refusals, key_filter, list_place

from ..reading.object_file import open_object

LOG = "_delta_log/"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_COLUMNS = ("add", "protocol", "metaData")
File = tuple[str, str]
"""(path in the log, id of the deletion vector or "")."""
TABULAR = frozenset({"arrow", "csv", "hf", "json", "jsonl", "parquet"})
"""Formats of table files."""
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


def live_keys(
    store: Store, folder: str, log: Sequence[ObjectInfo], table_keys: Collection[str], advice: str
) -> set[str]:
    """Return the keys of a Delta table's live files.

    folder: "" or a path that ends in "/". log: the log's objects. table_keys: keys of Parquet files. advice: for
    errors.

    Raises: InvalidStore if the table has features that penstock does not read; Corrupt if the log is incomplete.
    """
    name = f"{store.url}/{folder}{LOG}"
    reader = _DeltaLog(store, name, advice)
    commits, checkpoint, newest = _newest(log)
    for info in checkpoint:
        reader.read_checkpoint(info)
    last = max(commits, default=newest)
    for number in range(newest + 1, last + 1):
        if number not in commits:
            message = (
                f"{name} has no commit {number} after its checkpoint {max(newest, 0)}, so its live files are not "
                f"known: fetch the whole log; {advice}"
            )
            raise Corrupt(message, what=f"commit {number}", where=name)
    for number in range(newest + 1, last + 1):
        reader.read_commit(commits[number])
    keys = {f"{folder}{reader.file_path(path)}" for path in reader.live}
    missing = sorted(keys - set(table_keys))
    if missing:
        message = (
            f"{name} lists {missing[0]} ({len(missing)} such), and it is not there; fetch the table whole"
        )
        raise Corrupt(message, what=missing[0], where=name, given=len(missing))
    return keys


def _newest(log: Sequence[ObjectInfo]) -> tuple[dict[int, ObjectInfo], list[ObjectInfo], int]:
    """Return number -> commit, the newest whole checkpoint's objects, and its number or -1."""
    commits: dict[int, ObjectInfo] = {}
    parts: dict[
        tuple[int, int], dict[int, ObjectInfo]
    ] = {}  # (checkpoint, number of its parts) -> part -> object
    for info in log:
        file = info.key.rpartition("/")[2]
        commit = _COMMIT.fullmatch(file)
        if commit:
            commits[int(commit[1])] = info
            continue
        checkpoint = _CHECKPOINT.fullmatch(file)
        if checkpoint:
            number = int(checkpoint[1])
            part = int(checkpoint[2] or 1)
            n_parts = int(checkpoint[3] or 1)
            parts.setdefault((number, n_parts), {})[part] = info
    # A writer may have died between the parts of a checkpoint.
    whole = [key for key, files in parts.items() if len(files) == key[1]]
    if not whole:
        return commits, [], -1
    newest = max(whole)
    files = parts[newest]
    return commits, [files[part] for part in sorted(files)], newest[0]


class _DeltaLog:
    def __init__(self, store: Store, name: str, advice: str) -> None:
        self._store = store
        self._name = name
        self._advice = advice
        self._live: dict[File, None] = {}

    @property
    def live(self) -> list[str]:
        for path, vector in self._live:
            # Such a file still has its deleted rows.
            if vector:
                message = f"rows of {path} are deleted in place (deletion vectors)"
                raise self._refusal(message, what="deletion vectors", given=path)
        return [path for path, _ in self._live]

    def file_path(self, path: str) -> str:
        # The log has paths as parts of URLs.
        plain = unquote(path)
        if "://" in plain or plain.startswith(("/", "../")) or "/../" in plain:
            message = f"its file {path} lies elsewhere"
            raise self._refusal(message, what="file", given=path, accepted="a file of the table's folder")
        return plain

    def read_checkpoint(self, info: ObjectInfo) -> None:
        with open_object(self._store, info) as file:
            reader = pq.ParquetFile(pa.PythonFile(file, "r"), pre_buffer=False)
            columns = [name for name in reader.schema_arrow.names if name in _COLUMNS]
            for batch in reader.iter_batches(batch_size=1024, columns=columns, use_threads=False):
                for row in batch.to_pylist():
                    self._take(row)

    def read_commit(self, info: ObjectInfo) -> None:
        for number, line in enumerate(self._lines(info)):
            if not line.strip():
                continue
            try:
                self._take(parse_json_object(line))
            except (DamagedJson, KeyError, TypeError, AttributeError) as error:
                raise Corrupt(
                    f"{self._store.url}/{info.key}, line {number + 1} is not an action of a Delta log: {error!r}",
                    what=f"line {number + 1}",
                    where=f"{self._store.url}/{info.key}",
                    accepted="an action of a Delta log",
                ) from error

    def _lines(self, info: ObjectInfo) -> Iterator[bytes]:
        rest = b""
        with open_object(self._store, info) as file:
            while data := file.read(2**20):
                *lines, rest = (rest + data).split(b"\n")
                yield from lines
                if len(rest) > MAX_LOG_LINE_BYTES:
                    raise Corrupt(
                        limit_message(f"{file.path}: a line", len(rest), "bytes", MAX_LOG_LINE_BYTES)
                    )
        yield rest

    def _take(self, action: Mapping[str, Any]) -> None:
        removed = action.get("remove")
        if removed:
            self._live.pop(_action_file(removed), None)
        added = action.get("add")
        if added:
            self._live[_action_file(added)] = None
        protocol = action.get("protocol")
        if protocol:
            if int(protocol["minReaderVersion"]) > 3:
                message = f"it asks for readers of version {protocol['minReaderVersion']}"
                raise self._refusal(message, what="minReaderVersion", given=protocol["minReaderVersion"])
            if "v2Checkpoint" in (protocol.get("readerFeatures") or ()):
                raise self._refusal(
                    "its checkpoints are of the second kind (v2Checkpoint)", what="v2Checkpoint"
                )
        metadata = action.get("metaData")
        if metadata:
            # A checkpoint's row has a list of pairs, a commit's line a mapping.
            configuration = dict(metadata.get("configuration") or {})
            mode = configuration.get("delta.columnMapping.mode", "none")
            if mode != "none":
                message = f"its files have other names of columns (columnMapping.mode={mode})"
                raise self._refusal(message, what="columnMapping.mode", given=mode)

    def _refusal(self, why: str, **fields: object) -> InvalidStore:
        message = f"{self._name} is the log of a Delta table, and {why}: {self._advice}"
        return InvalidStore(message, where=self._name, **fields)


def _action_file(action: Mapping[str, Any]) -> File:
    vector = action.get("deletionVector") or {}
    words = [vector.get(name) for name in ("storageType", "pathOrInlineDv", "offset")]
    vector_id = " ".join(str(word) for word in words if word is not None)
    return str(action["path"]), vector_id


def is_no_table_file(format: str, key: str) -> bool:
    """Return whether a key is another tool's auxiliary file in a table's folder."""
    return format in TABULAR and bool(_HIDDEN.search(key) or _DERIVED.search(key))


def table_log(format: str, key: str) -> str:
    """Return the table format whose log has the object, or ""."""
    if format in TABULAR:
        for pattern, name in _LOGS:
            if pattern.match(key):
                return name
    return ""


def live_files(store: Store, format: str, infos: list[ObjectInfo]) -> list[ObjectInfo]:
    """Return the objects except table files without live rows.

    Raises: InvalidStore if a table's live rows cannot be determined; Corrupt if its log is incomplete.
    """
    if format not in TABULAR:
        return infos
    for pattern, name in ((_HUDI, "Hudi"), (_ICEBERG, "Iceberg")):
        for info in infos:
            match = pattern.match(info.key)
            if match:
                folder = match["folder"]
                raise InvalidStore(
                    f"{store.url}/{folder} is a table of {name} ({info.key}), whose files also hold rows that were "
                    f"deleted or replaced: {_EXPORT.format(format=name.lower(), folder=folder)}",
                    what=f"table of {name}",
                    where=f"{store.url}/{folder}",
                    given=info.key,
                )
    dead = _removals(store, infos)
    if format == "arrow":  # `hf` reads the state itself
        dead |= _not_of_state(store, infos)
    return [info for info in infos if info.key not in dead and not is_no_table_file(format, info.key)]


def _removals(store: Store, infos: Sequence[ObjectInfo]) -> set[str]:
    """Return the keys of Parquet files that a Delta log does not list as live."""
    logs: dict[str, list[ObjectInfo]] = {}
    for info in infos:
        match = _DELTA.match(info.key)
        if match:
            logs.setdefault(match["folder"], []).append(info)
    parquet_keys = [info.key for info in infos if info.key.endswith(".parquet")]
    dead: set[str] = set()
    for folder, log in logs.items():
        advice = _EXPORT.format(format="delta", folder=folder)
        table_keys = {key for key in parquet_keys if key.startswith(folder)}
        dead |= table_keys - live_keys(store, folder, log, table_keys, advice)
    return dead


def _not_of_state(store: Store, infos: Sequence[ObjectInfo]) -> set[str]:
    """Return the keys of Arrow files that the `state.json` of their folder does not list."""
    files_of: dict[str, set[str]] = {}
    for info in infos:
        if info.key.endswith(".arrow"):
            files_of.setdefault(info.key.rpartition("/")[0], set()).add(info.key)
    dead: set[str] = set()
    for info in infos:
        folder, _, name = info.key.rpartition("/")
        if name != "state.json" or info.nbytes > MAX_STATE_BYTES:
            continue
        try:
            state = parse_json_object(store.get(info.key).data)
            live = {f"{folder}/{file['filename']}".lstrip("/") for file in state["_data_files"]}
        except (DamagedJson, KeyError, TypeError):
            continue  # another tool's file
        dead |= files_of.get(folder, set()) - live
    return dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Patterns that choose objects by key."""

    include: tuple[str, ...] = ()
    """Patterns to include; all objects if empty."""
    exclude: tuple[str, ...] = ()
    """Patterns to exclude."""

    def to_json(self) -> dict[str, Any]:
        """Return {} if all objects are selected."""
        patterns = {"include": list(self.include), "exclude": list(self.exclude)}
        return {name: texts for name, texts in patterns.items() if texts}


EVERYTHING = Selection()


class ListedObjects(NamedTuple):
    infos: list[ObjectInfo]
    """Objects that may be in the format."""
    n: int
    """Number of objects, selected or not."""
    refusals: Refusals
    """Objects that were not listed, with reasons."""
    why_left_out: Callable[[str], str]
    """Returns why patterns leave out a key, or ""."""

    def why_none(self, url: str, format: str) -> str:
        """Return the start of an error: the source has no object in the format."""
        if not self.n and not self.refusals.n:
            return f"{url} is empty or does not exist: check the URL, which names a folder or a prefix"
        text = f"{url} has no {format} object among {self.n}"
        if self.n > len(self.infos):
            text += f", of which {self.n - len(self.infos)} were left out by patterns, or hold no live rows"
        if self.refusals.n:
            name, reason = self.refusals.first[0]
            text += f"; {self.refusals.n} more were refused, such as {name!r}: {reason}"
        return text


def list_selected(store: Store, format: str, selection: Selection) -> ListedObjects:
    """Return a source's selected objects. Raises: as `key_filter`."""
    why_left_out = key_filter(selection.include, selection.exclude, store.url)
    refusals = Refusals()

    def refuse(name: str, reason: str) -> None:
        if not why_left_out(name):
            refusals(name, reason)

    infos: list[ObjectInfo] = []
    n = 0
    for info in list_place(store, refuse=refuse):
        n += 1
        if not why_left_out(info.key):
            infos.append(info)
    return ListedObjects(live_files(store, format, infos), n, refusals, why_left_out)
