"""The untrusted `.nv-meta` of an Energon dataset: its archives, splits and samples.

Its SQLite tables are read once, read-only, without indexes, views and triggers.
"""

import os
import re
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from loader.errors import Corrupt, InvalidStore, MissingDependency
from loader.json_text import DamagedJson, parse_json
from loader.limits import limit_message
from loader.storage import ObjectInfo, Store
from loader.storage.disk.scratch import on_scratch, scratch_folder
from loader.storage.files import download

from .tar_headers import BLOCK_BYTES

FOLDER = ".nv-meta/"
INFO = ".info.json", ".info.yaml"
"""Possible names of the list of archives; the first that exists is read."""
SPLIT = "split.yaml", "split.json"
MOST_BYTES = 16 * 2**20
"""Largest metadata file, in bytes."""
MOST_YAML_BYTES = 2**20
"""Largest YAML file, in bytes; parsing it takes 3 s."""
MOST_NAMES = 10**6
"""Most names that all patterns expand to."""
_MOST_BRACES = 16
"""Most pairs of braces on the way to a name, nested or in a row; each may multiply the names."""
_RANGE = re.compile(
    r"(-?\d{1,12})\.\.(-?\d{1,12})(?:\.\.(-?\d{1,12}))?|([a-zA-Z])\.\.([a-zA-Z])(?:\.\.(-?\d{1,6}))?"
)

INDEX = ".nv-meta/index.sqlite"
RECORD_BYTES = 20 * BLOCK_BYTES
"""Bytes of a record; archives are padded to a multiple of it."""
TEXT_BYTES = 2**20
"""Longest name or table definition, in bytes."""
_LEAST_ROW = 8
"""Smallest row of five columns, in bytes."""
_SAMPLES = "tar_file_id", "sample_key", "sample_index", "byte_offset", "byte_size"
_PARTS = "tar_file_id", "sample_index", "part_name", "content_byte_offset", "content_byte_size"
Int64s = np.ndarray[Any, np.dtype[np.int64]]


class NvMeta(NamedTuple):
    counts: dict[str, int]
    """Archive -> number of samples, in index order."""
    splits: dict[str, str]
    """Archive -> its split, if it has one."""
    excluded: frozenset[str]
    """Excluded archives, and `<archive>/<key>` of excluded samples."""


def read_meta(store: Store, objects: Mapping[str, ObjectInfo]) -> NvMeta:
    """Return the contents of `.nv-meta`. objects: by key.

    Raises: InvalidStore if there is none, or if an archive is in two splits.
    """
    info_keys = [FOLDER + name for name in INFO if FOLDER + name in objects]
    if not info_keys:
        message = (
            f"{store.url} has no {FOLDER}{INFO[0]}: register the folder that `energon prepare` was run on, or register "
            "the archives as webdataset"
        )
        raise InvalidStore(message, what=f"{FOLDER}{INFO[0]}", where=store.url)
    info_key = info_keys[0]
    counts = _counts(_document(store, objects[info_key]), f"{store.url}/{info_key}")
    split_keys = [FOLDER + name for name in SPLIT if FOLDER + name in objects]
    if not split_keys:
        return NvMeta(counts, {}, frozenset())
    split_key = split_keys[0]
    return _with_splits(counts, _document(store, objects[split_key]), f"{store.url}/{split_key}")


def expand_braces(pattern: str, name: str) -> Iterator[str]:
    """Yield the names of a pattern with Bash braces. name: of its file. Raises: Corrupt for too many braces."""
    yield from _expand(pattern, name, 0)


def _document(store: Store, info: ObjectInfo) -> Any:
    """Return a metadata file's JSON; or its YAML, in which numbers are text, too."""
    name = f"{store.url}/{info.key}"
    if info.nbytes > MOST_BYTES:
        raise Corrupt(f"{name} has {info.nbytes:,} bytes; at most {MOST_BYTES:,} are read")
    data = store.get(info.key).data
    try:
        return parse_json(data)
    except DamagedJson as error:
        if info.key.endswith(".json"):
            raise Corrupt(f"{name} is not JSON: {error}", where=name, accepted="JSON") from error
    if len(data) > MOST_YAML_BYTES:
        raise Corrupt(
            f"{name} has {len(data):,} bytes of YAML; at most {MOST_YAML_BYTES:,} are read, or write it as JSON"
        )
    try:
        yaml = import_module("yaml")
    except ImportError as error:
        raise MissingDependency(f"{name} is YAML: pip install 'penstock-data[energon]'") from error
    try:
        return yaml.load(data, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise Corrupt(
            f"{name} is not YAML: {' '.join(str(error).split())[:300]}", where=name, accepted="YAML"
        ) from error


def _counts(document: Any, name: str) -> dict[str, int]:
    try:
        return {key: _count(n) for key, n in document["shard_counts"].items() if isinstance(key, str)}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"{name} has no shard_counts of archives and their numbers of samples: {error!r}",
            what="shard_counts",
            where=name,
            accepted="archives and their numbers of samples",
        ) from error


def _count(n: Any) -> int:
    if not isinstance(n, str | int):  # a list with YAML aliases may have an endless text form
        raise TypeError(f"a {type(n).__name__} is not a number of samples")
    text = str(n)
    if not re.fullmatch(r"\d{1,15}", text):
        raise ValueError(f"{text[:40]!r} is not a number of samples")
    return int(text)


def _with_splits(counts: dict[str, int], document: Any, name: str) -> NvMeta:
    try:
        split_parts = document["split_parts"]
        n_patterns = sum(map(len, split_parts.values()))
        if n_patterns > MOST_NAMES:  # YAML aliases can repeat one list many times
            message = limit_message(f"{name}: its splits", n_patterns, "patterns", MOST_NAMES)
            raise Corrupt(message, what="split_parts", where=name, given=n_patterns, accepted=MOST_NAMES)
        parts = {split: list(patterns) for split, patterns in split_parts.items()}
        excluded = list(document.get("exclude") or ())
        _check_texts(parts)
        _check_texts(excluded)
        for patterns in parts.values():
            _check_texts(patterns)
    except (AttributeError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{name} has no split_parts of splits and their archives: {error!r}",
            what="split_parts",
            where=name,
            accepted="splits and their archives",
        ) from error
    splits: dict[str, str] = {}
    budget = NameBudget(name)
    for split, patterns in parts.items():
        for key in budget.names(patterns):
            if key not in counts:
                message = f"{name}: the split {split!r} has {key!r}, which is not an archive of the dataset"
                raise Corrupt(message, what=f"split {split!r}", where=name, given=key)
            if splits.setdefault(key, split) != split:
                message = (
                    f"{name}: {key!r} is in the splits {splits[key]!r} and {split!r}; a sample has one. Name "
                    "each archive once"
                )
                raise InvalidStore(message, what=key, where=name, given=[splits[key], split])
    return NvMeta(counts, splits, frozenset(budget.names(excluded)))


def _check_texts(values: Iterable[Any]) -> None:
    if not all(isinstance(value, str) for value in values):
        raise TypeError("a name is not text")


class NameBudget:
    """Expands the patterns of one file. All its splits together have at most `MOST_NAMES` names."""

    def __init__(self, name: str) -> None:
        """Start with no names. name: of the file, for errors."""
        self._name = name
        self._n = 0

    def names(self, patterns: list[str]) -> Iterator[str]:
        """Yield the names of some patterns. Raises: Corrupt if the file's patterns name too many."""
        for pattern in patterns:
            for key in expand_braces(pattern, self._name):
                self._n += 1
                if self._n > MOST_NAMES:
                    what = f"{self._name}: {pattern[:80]!r} and the patterns before it"
                    message = limit_message(what, self._n, "names", MOST_NAMES)
                    raise Corrupt(
                        message, what=pattern[:80], where=self._name, given=self._n, accepted=MOST_NAMES
                    )
                yield key


def _expand(pattern: str, name: str, depth: int) -> Iterator[str]:
    """Yield a pattern's names. depth: pairs of braces around it and before it."""
    start, stop, commas = _braces(pattern)
    if stop < 0:  # no pair of braces is left
        yield pattern
        return
    if depth > _MOST_BRACES or len(pattern) > 4096:
        message = f"{name}: {pattern[:80]!r} has too many braces; name its archives one by one"
        raise Corrupt(message, what="braces", where=name, given=pattern[:80])
    for head in _alternatives(pattern, start, stop, commas, name, depth):
        for tail in _expand(pattern[stop + 1 :], name, depth + 1):
            yield pattern[:start] + head + tail


def _alternatives(
    pattern: str, start: int, stop: int, commas: list[int], name: str, depth: int
) -> Iterator[str]:
    """Yield the texts that replace the braces from `start` to `stop`."""
    inner = pattern[start + 1 : stop]
    if commas:
        for before, after in pairwise([start, *commas, stop]):
            yield from _expand(pattern[before + 1 : after], name, depth + 1)
        return
    match = _RANGE.fullmatch(inner)
    if match is not None:
        yield from _range(match)
        return
    # Bash keeps the braces around a single word.
    for word in _expand(inner, name, depth + 1):
        yield f"{{{word}}}"


def _braces(pattern: str) -> tuple[int, int, list[int]]:
    """Return (start, stop, commas) of the first pair of braces; -1 for a missing brace."""
    start = pattern.find("{")
    commas: list[int] = []
    if start < 0:
        return start, -1, commas
    depth = 0
    for at in range(start, len(pattern)):
        character = pattern[at]
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
        elif character == "," and depth == 1:  # deeper commas belong to inner braces
            commas.append(at)
        if depth == 0:
            return start, at, commas
    return start, -1, []


def _range(match: re.Match[str]) -> Iterator[str]:
    """Yield the members of a Bash sequence, such as 008..012 or a..f..2."""
    if match[4]:
        for code in _steps(ord(match[4]), ord(match[5]), match[6]):
            yield chr(code)
        return
    ends = match[1], match[2]
    width = 0
    if any(re.match("-?0.", end) for end in ends):  # a leading zero: Bash pads to the longer end
        width = max(map(len, ends))
    for number in _steps(int(match[1]), int(match[2]), match[3]):
        yield f"{number:0{width}d}"


def _steps(first: int, last: int, text: str | None) -> range:
    """Return the numbers from first to last, both included. text: the step, whose sign does not count."""
    step = abs(int(text or 1)) or 1
    if first <= last:
        return range(first, last + 1, step)
    return range(first, last - 1, -step)


class IndexedMember(NamedTuple):
    name: str
    """Field name."""
    offset: int
    """Content's offset."""
    nbytes: int
    """Content's length in bytes."""


class IndexedTar:
    """One archive's samples."""

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._samples = array("q")  # (number, offset, bytes) of each sample
        self._parts = array("q")  # (sample's number, name's index, offset, bytes) of each member
        self._names: dict[str, int] = {}

    def add_sample(self, key: str, number: int, offset: int, nbytes: int) -> None:
        self._keys.append(key)
        self._samples.extend((number, offset, nbytes))

    def add_part(self, number: int, name: str, offset: int, nbytes: int) -> None:
        """Add a row of `sample_parts`. number: its sample's index in the archive."""
        name_index = self._names.setdefault(name, len(self._names))
        self._parts.extend((number, name_index, offset, nbytes))

    def samples(self, nbytes: int, count: int) -> list[tuple[str, list[IndexedMember]]] | None:
        """Return each sample's key and members; None if they do not fill `nbytes` bytes.

        count: number of samples that the dataset lists.
        """
        samples = np.array(self._samples, np.int64).reshape(-1, 3)
        parts = np.array(self._parts, np.int64).reshape(-1, 4)
        by_number = np.argsort(samples[:, 0], kind="stable")
        samples = samples[by_number]
        parts = parts[np.lexsort((parts[:, 2], parts[:, 0]))]  # by sample, then by offset
        if count <= 0 or len(samples) != count or not _fills(samples, parts, nbytes):
            return None
        names = list(self._names)
        members = [IndexedMember(names[name], *place) for name, *place in parts[:, 1:].tolist()]
        # [count + 1]: each sample's first member
        cuts = np.searchsorted(parts[:, 0], np.arange(count + 1)).tolist()
        out = []
        for number, at in enumerate(by_number.tolist()):
            out.append((self._keys[at], members[cuts[number] : cuts[number + 1]]))
        return out


def read_index(store: Store, info: ObjectInfo, n_archives: int) -> Mapping[int, IndexedTar]:
    """Return archive number -> its samples; empty if the index lists no members.

    Downloads to scratch. Memory: 64 bytes plus the key per sample, 32 bytes per member.
    """
    name = f"{store.url}/{info.key}"
    with (
        on_scratch(None, f"when {name} was read", room_for="it", again="register again"),
        scratch_folder("index") as folder,
    ):
        path = os.path.join(folder, "index.sqlite")
        download(store, info.key, path, info=info)
        try:
            with closing(_open_database(path)) as database:
                return _read(database, name, info.nbytes, n_archives)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the schema in a message may have any bytes
            message = f"{name} is damaged, or no index of Energon: {error}; run `energon prepare` again"
            raise Corrupt(message, what="index", where=name, accepted="an index of Energon") from error


def _open_database(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True, isolation_level=None)
    for limit, most in (
        (sqlite3.SQLITE_LIMIT_LENGTH, TEXT_BYTES),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, TEXT_BYTES),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 50),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        database.setlimit(limit, most)
    database.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0"):
        database.execute(f"PRAGMA {pragma}")
    return database


def _read(database: sqlite3.Connection, name: str, nbytes: int, n_archives: int) -> dict[int, IndexedTar]:
    if not _columns(database, "samples", _SAMPLES, name):
        message = f"{name} has no table samples; run `energon prepare` again"
        raise Corrupt(message, what="table samples", where=name)
    tars: dict[int, IndexedTar] = {}
    if not _columns(database, "sample_parts", _PARTS, name):
        return tars  # older Energon releases did not store members
    for row in _rows(database, "samples", _SAMPLES, name, nbytes, n_archives):
        archive, key, *place = row
        tars.setdefault(archive, IndexedTar()).add_sample(key, *place)
    for row in _rows(database, "sample_parts", _PARTS, name, nbytes, n_archives):
        archive, number, part, *place = row
        tars.setdefault(archive, IndexedTar()).add_part(number, part, *place)
    return tars


def _columns(database: sqlite3.Connection, table: str, required: tuple[str, ...], name: str) -> bool:
    """Return whether there is a table. Raises: Corrupt unless it is plain and has the required columns."""
    definition = database.execute("SELECT type, sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    if definition is None:
        return False
    kind, sql = definition
    # Column 1 of the pragma is the name, column 6 is 0 unless the column is hidden or generated.
    hidden = {row[1]: row[6] for row in database.execute(f"PRAGMA table_xinfo({table})")}
    is_table = kind == "table" and str(sql).upper().startswith("CREATE TABLE ")
    if not is_table or any(hidden.get(column) for column in required):
        message = f"{name}: {table} is not a plain table; run `energon prepare` again"
        raise Corrupt(message, what=f"table {table}", where=name, accepted="a plain table")
    missing = [column for column in required if column not in hidden]
    if missing:
        message = f"{name}: the table {table} has no column {missing[0]}; run `energon prepare` again"
        raise Corrupt(message, what=f"column {missing[0]}", where=name)
    return True


def _rows(
    database: sqlite3.Connection,
    table: str,
    columns: tuple[str, ...],
    name: str,
    nbytes: int,
    n_archives: int,
) -> Iterator[Any]:
    texts = ("sample_key", "part_name")
    kinds = [str if column in texts else int for column in columns]
    rows = database.execute(f"SELECT {', '.join(columns)} FROM {table} NOT INDEXED")
    for number, row in enumerate(rows):
        is_valid = list(map(type, row)) == kinds and 0 <= row[0] < n_archives
        # A damaged file can list a page again and again: more rows than its bytes hold end the walk.
        if not is_valid or number * _LEAST_ROW > nbytes:
            message = f"{name}: row {number} of {table} is {str(row)[:200]}; run `energon prepare` again"
            raise Corrupt(message, what=f"row {number} of {table}", where=name, given=str(row)[:200])
        yield row


def _fills(samples: Int64s, parts: Int64s, nbytes: int) -> bool:
    """Return whether samples fill the archive with room for headers; both arrays are sorted by offset.

    samples: [n, 3] of number, offset, bytes. parts: [members, 4] of sample, name, offset, bytes.
    """
    for table in (samples[:, 1:], parts[:, 2:]):
        if (table < 0).any() or (table > nbytes).any():
            return False
    start = samples[:, 1]
    end = start + samples[:, 2]
    if not np.array_equal(samples[:, 0], np.arange(len(samples))):
        return False
    if not np.array_equal(start[1:], end[:-1]) or (start % BLOCK_BYTES).any():
        return False
    # An archive ends with two blocks of zeros, padded to a record.
    tail = nbytes - int(end[-1])
    if not 2 * BLOCK_BYTES <= tail <= 2 * BLOCK_BYTES + RECORD_BYTES:
        return False
    if not np.array_equal(np.unique(parts[:, 0]), samples[:, 0]):  # each sample has members
        return False
    sample = parts[:, 0]
    content = parts[:, 2]
    n_blocks = -(-parts[:, 3] // BLOCK_BYTES)
    content_end = content + n_blocks * BLOCK_BYTES
    if (content % BLOCK_BYTES).any():
        return False
    # A header of one block precedes each content.
    if (content < start[sample] + BLOCK_BYTES).any() or (content_end > end[sample]).any():
        return False
    if (content[1:] < content_end[:-1] + BLOCK_BYTES).any():
        return False
    return len(np.unique(parts[:, :2], axis=0)) == len(parts)  # no sample has a name twice
