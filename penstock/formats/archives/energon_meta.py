"""Read the list of a dataset's archives, and its splits: `.nv-meta/.info.json` and `split.yaml`, or older names."""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

from loader.errors import Corrupt, InvalidStore, MissingDependency
from loader.json_text import DamagedJson, parse_json
from loader.limits import beyond
from loader.storage import ObjectInfo, Store

FOLDER = ".nv-meta/"
INFO = ".info.json", ".info.yaml"
"""Names of the list of archives; the first that exists counts."""
SPLIT = "split.yaml", "split.json"
MOST_BYTES = 16 * 2**20
"""Limit on the bytes of such a file."""
MOST_YAML_BYTES = 2**20
"""Limit on the bytes of YAML: the parser needs a second for a third of it."""
MOST_NAMES = 10**6
"""Limit on the names that a file's patterns expand to."""
_NESTED = 16
_RANGE = re.compile(
    r"(-?\d{1,12})\.\.(-?\d{1,12})(?:\.\.(-?\d{1,12}))?|([a-zA-Z])\.\.([a-zA-Z])(?:\.\.(-?\d{1,6}))?"
)


class NvMeta(NamedTuple):
    """An Energon dataset, as its folder `.nv-meta` describes it."""

    counts: dict[str, int]
    """Archive -> number of its samples, in the order of the index's numbers."""
    splits: dict[str, str]
    """Archive -> its split; without archives of no split."""
    excluded: frozenset[str]
    """Excluded archives, and `<archive>/<key>` of excluded samples."""


def meta_of(store: Store, objects: Mapping[str, ObjectInfo]) -> NvMeta:
    """Return the description of the dataset at a place. objects: of the place, by key.

    Raises: InvalidStore without one, and for an archive of two splits; Corrupt by name; MissingDependency;
    StoreError.
    """
    info = next((FOLDER + name for name in INFO if FOLDER + name in objects), None)
    if info is None:
        raise InvalidStore(
            f"{store.url} has no {FOLDER}{INFO[0]}: register the folder that `energon prepare` was run on, or register "
            "the archives as webdataset"
        )
    counts = _counts(_document(store, objects[info]), f"{store.url}/{info}")
    split = next((FOLDER + name for name in SPLIT if FOLDER + name in objects), None)
    if split is None:
        return NvMeta(counts, {}, frozenset())
    return _with_splits(counts, _document(store, objects[split]), f"{store.url}/{split}")


def expanded(pattern: str, name: str) -> Iterator[str]:
    """Yield the names that a pattern with braces expands to, as in Bash. Raises: Corrupt for deep nesting."""
    yield from _expanded(pattern, name, 0)


def _document(store: Store, info: ObjectInfo) -> Any:
    """Return the parsed file; YAML scalars as text."""
    name = f"{store.url}/{info.key}"
    if info.nbytes > MOST_BYTES:
        raise Corrupt(f"{name} has {info.nbytes:,} bytes; at most {MOST_BYTES:,} are read")
    data = store.get(info.key).data
    try:
        return parse_json(data)
    except DamagedJson as error:
        if info.key.endswith(".json"):
            raise Corrupt(f"{name} is no JSON: {error}") from error
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
        raise Corrupt(f"{name} is no YAML: {' '.join(str(error).split())[:300]}") from error


def _counts(document: Any, name: str) -> dict[str, int]:
    try:
        return {key: _count(n) for key, n in document["shard_counts"].items() if isinstance(key, str)}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"{name} has no shard_counts of archives and their numbers of samples: {error!r}"
        ) from error


def _count(n: Any) -> int:
    if not isinstance(n, str | int):  # YAML aliases make a list endless as text
        raise TypeError(f"a {type(n).__name__} is no number of samples")
    text = str(n)
    if not re.fullmatch(r"\d{1,15}", text):
        raise ValueError(f"{text[:40]!r} is no number of samples")
    return int(text)


def _with_splits(counts: dict[str, int], document: Any, name: str) -> NvMeta:
    """Return the description with the splits of split.yaml."""
    try:
        if (
            n := sum(map(len, document["split_parts"].values()))
        ) > MOST_NAMES:  # aliases repeat one list many times
            raise Corrupt(beyond(f"{name}: its splits", n, "patterns", MOST_NAMES))
        parts = {split: list(patterns) for split, patterns in document["split_parts"].items()}
        excluded = list(document.get("exclude") or ())
        if not all(
            isinstance(one, str)
            for one in (*parts, *excluded, *(p for patterns in parts.values() for p in patterns))
        ):
            raise TypeError("a name is no text")
    except (AttributeError, KeyError, TypeError) as error:
        raise Corrupt(f"{name} has no split_parts of splits and their archives: {error!r}") from error
    splits = dict[str, str]()
    for split, patterns in parts.items():
        for key in _names(patterns, name):
            if key not in counts:
                raise Corrupt(f"{name}: the split {split!r} has {key!r}, which is no archive of the dataset")
            if splits.setdefault(key, split) != split:
                raise InvalidStore(
                    f"{name}: {key!r} is in the splits {splits[key]!r} and {split!r}; a sample has one. Name "
                    "each archive once"
                )
    return NvMeta(counts, splits, frozenset(_names(excluded, name)))


def _names(patterns: list[str], name: str) -> Iterator[str]:
    """Yield the names of patterns."""
    n = 0
    for pattern in patterns:
        for key in expanded(pattern, name):
            n += 1
            if n > MOST_NAMES:
                raise Corrupt(beyond(f"{name}: {pattern[:80]!r} and those before it", n, "names", MOST_NAMES))
            yield key


def _expanded(pattern: str, name: str, depth: int) -> Iterator[str]:
    start, stop, commas = _braces(pattern)
    if stop < 0:
        yield pattern
        return
    if depth > _NESTED or len(pattern) > 4096:
        raise Corrupt(f"{name}: {pattern[:80]!r} has too many braces; name its archives one by one")
    inner = pattern[start + 1 : stop]
    if commas:
        cuts = [start, *commas, stop]
        words = [pattern[a + 1 : b] for a, b in pairwise(cuts)]
        heads: Iterator[str] = (one for word in words for one in _expanded(word, name, depth + 1))
    elif (match := _RANGE.fullmatch(inner)) is not None:
        heads = _range(match)
    else:
        heads = (f"{{{one}}}" for one in _expanded(inner, name, depth + 1))
    for head in heads:
        for tail in _expanded(pattern[stop + 1 :], name, depth + 1):
            yield pattern[:start] + head + tail


def _braces(pattern: str) -> tuple[int, int, list[int]]:
    """Return the indices of the first pair of braces, and of its commas; -1 for a missing brace."""
    start, open_, commas = pattern.find("{"), 0, list[int]()
    for at in range(max(0, start), len(pattern) if start >= 0 else 0):
        open_ += (pattern[at] == "{") - (pattern[at] == "}")
        if pattern[at] == "," and open_ == 1:
            commas.append(at)
        if open_ == 0:
            return start, at, commas
    return start, -1, []


def _range(match: re.Match[str]) -> Iterator[str]:
    if match[4]:
        first, last, step = ord(match[4]), ord(match[5]), abs(int(match[6] or 1)) or 1
        yield from map(
            chr, range(first, last + (1 if last >= first else -1), step if last >= first else -step)
        )
        return
    first, last, step = int(match[1]), int(match[2]), abs(int(match[3] or 1)) or 1
    padded = any(len(one.lstrip("-")) > 1 and one.lstrip("-")[0] == "0" for one in (match[1], match[2]))
    width = max(len(match[1]), len(match[2])) if padded else 0
    for number in range(first, last + (1 if last >= first else -1), step if last >= first else -step):
        yield f"{number:0{width}d}"
