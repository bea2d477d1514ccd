"""Lanes of an episode's page: neighbouring dimensions of a stream with names alike, drawn over one another."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..json_record import JsonRecord
from .open_episode import EpisodeStream
from .stream_summary import MAX_DIMS, n_dims

MOST_DIMS = 8
"""Most dimensions of a lane: one colour each."""
MOST_LANES = 64
"""Most lanes of a page."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]|\d+|[^\W\d_a-zA-Z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane(JsonRecord):
    """Dimensions of a stream, drawn over one another; another stream may be dashed."""

    name: str
    """Title."""
    field: str
    """Stream drawn solid."""
    dashed: str
    """Stream with the same dimensions, or ""."""
    first: int
    """First dimension."""
    labels: tuple[str, ...]
    """A label for each dimension."""
    unit: str
    """Unit of the values, or ""."""


def stream_lanes(streams: Mapping[str, EpisodeStream]) -> tuple[tuple[Lane, ...], int]:
    """Return (up to 64 lanes of streams, number of dimensions without one).

    A state and an action of the same names share lanes.
    """
    dashed = _pairs(streams)
    lanes: list[Lane] = []
    n_wide = 0
    for field, stream in streams.items():
        # The action is drawn in the lanes of its state.
        if field in dashed.values():
            continue
        n = n_dims(stream.layout)
        if n > MAX_DIMS:  # a header without rows may declare any number
            n_wide += n
            continue
        lanes += _lanes_of_stream(field, stream, n, dashed.get(field, ""))
    n_left_out = n_wide
    for lane in lanes[MOST_LANES:]:
        n_left_out += len(lane.labels)
    return tuple(lanes[:MOST_LANES]), n_left_out


def _lanes_of_stream(field: str, stream: EpisodeStream, n: int, dashed: str) -> list[Lane]:
    """Return the lanes of a stream of n dimensions."""
    short, _, _ = field.rpartition(".")
    names = stream.names or tuple(map(str, range(n)))
    lanes: list[Lane] = []
    for first, stop in groups(names):
        title, labels = _split_titles(names[first:stop])
        span = ""
        if stop - first < len(names):
            last = stop - 1
            span = f"{names[first]} to {names[last]}"
        name = title or span or short
        if not stream.names:
            name = f"{short} {span}".strip()
        lane = Lane(
            name=name,
            field=field,
            dashed=dashed,
            first=first,
            labels=labels,
            unit=stream.unit,
        )
        lanes.append(lane)
    return lanes


def _pairs(streams: Mapping[str, EpisodeStream]) -> dict[str, str]:
    """Return state -> action of equal names and units."""
    out: dict[str, str] = {}
    for action in streams:
        words = action.split(".")
        if words[0] not in ("action", "actions"):
            continue
        for state in streams:
            if not _is_state(state) or state in out:
                continue
            if _are_alike(streams[state], streams[action]):
                out[state] = action
                break
    return out


def _are_alike(own: EpisodeStream, other: EpisodeStream) -> bool:
    """Return whether two streams have the same dimensions."""
    if own.names != other.names or own.unit != other.unit:
        return False
    return n_dims(own.layout) == n_dims(other.layout)


def _is_state(field: str) -> bool:
    return field.split(".")[-2:-1] in (["state"], ["qpos"])


def groups(names: Sequence[str]) -> list[tuple[int, int]]:
    """Return [first, stop) of neighbours with equal leading words, at most eight each."""
    words: list[tuple[str, ...]] = []
    for name in names:
        lower = name_words(name)
        words.append(lower)
    out: list[tuple[int, int]] = []
    for first, stop in _runs(words, 0, len(names), 0):
        if not out:
            out.append((first, stop))
            continue
        before_first, before_stop = out[-1]
        # A lane of one or two dimensions joins its neighbour.
        is_tiny = min(stop - first, before_stop - before_first) <= 2
        if is_tiny and stop - before_first <= MOST_DIMS:
            out[-1] = (before_first, stop)
        else:
            out.append((first, stop))
    return out


def name_words(name: str) -> tuple[str, ...]:
    """Return the words of a dimension's name in lower case: leftHand_2 has left, hand and 2."""
    words = _WORD.findall(name)
    return tuple(word.lower() for word in words)


def _runs(
    words: Sequence[tuple[str, ...]],
    first: int,
    stop: int,
    depth: int,
) -> list[tuple[int, int]]:
    """Return [first, stop) of the lanes of some names, which share their first `depth` words."""
    if stop == first:
        return []
    if stop - first <= MOST_DIMS:
        return [(first, stop)]
    n_words = [len(words_of_name) for words_of_name in words[first:stop]]
    # No word is left to divide by. The bound ends names of hundreds of words.
    if depth >= max(n_words) or depth > 8:
        return _equal_runs(first, stop)
    out: list[tuple[int, int]] = []
    at = first
    for _, run in groupby(words[first:stop], lambda name: name[depth : depth + 1]):
        n = len(list(run))
        out += _runs(words, at, at + n, depth + 1)
        at += n
    if len(out) == stop - first:  # every name differs in this word: numbers
        return _equal_runs(first, stop)
    return out


def _equal_runs(first: int, stop: int) -> list[tuple[int, int]]:
    """Return [first, stop) of lanes of MOST_DIMS dimensions each, the last of the rest."""
    runs: list[tuple[int, int]] = []
    for start in range(first, stop, MOST_DIMS):
        end = min(stop, start + MOST_DIMS)
        runs.append((start, end))
    return runs


def _split_titles(names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return (words that all names begin with, or ""; each name's rest)."""
    words = [name_words(name) for name in names]
    shortest = min(len(words_of_name) for words_of_name in words)
    n = 0  # leading words that all names share; each keeps at least one of its own
    while n < shortest - 1 and len({words_of_name[n] for words_of_name in words}) == 1:
        n += 1
    if len(names) == 1 or not n:
        return "", tuple(names)
    # Single characters, such as the j of j1, make no title.
    long_words = [word for word in words[0][:n] if len(word) > 1]
    title = " ".join(long_words)
    if not title:
        title = _WORD.findall(names[0])[0]
    labels: list[str] = []
    for name in names:
        matches = list(_WORD.finditer(name))
        rest = name[matches[n].start() :]
        labels.append(rest)
    return title, tuple(labels)
