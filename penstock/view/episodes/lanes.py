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
        if field in dashed.values():
            continue
        if (n := n_dims(stream.layout)) > MAX_DIMS:  # a header without rows may declare any number
            n_wide += n
            continue
        short = field.rpartition(".")[0]
        names = stream.names or tuple(map(str, range(n)))
        for first, stop in groups(names):
            title, labels = _split_titles(names[first:stop])
            span = "" if stop - first == len(names) else f"{names[first]} to {names[stop - 1]}"
            lanes.append(
                Lane(
                    name=(title or span or short) if stream.names else f"{short} {span}".strip(),
                    field=field,
                    dashed=dashed.get(field, ""),
                    first=first,
                    labels=labels,
                    unit=stream.unit,
                )
            )
    return tuple(lanes[:MOST_LANES]), n_wide + sum(len(lane.labels) for lane in lanes[MOST_LANES:])


def _pairs(streams: Mapping[str, EpisodeStream]) -> dict[str, str]:
    """Return state -> action of equal names and units."""
    out: dict[str, str] = {}
    for action in streams:
        words = action.split(".")
        if words[0] not in ("action", "actions"):
            continue
        for state in streams:
            own = streams[state]
            other = streams[action]
            same = own.names == other.names and own.unit == other.unit and (own.names or _is_state(state))
            if _is_state(state) and same and n_dims(own.layout) == n_dims(other.layout) and state not in out:
                out[state] = action
                break
    return out


def _is_state(field: str) -> bool:
    return field.split(".")[-2:-1] in (["state"], ["qpos"])


def groups(names: Sequence[str]) -> list[tuple[int, int]]:
    """Return [first, stop) of neighbours with equal leading words, at most eight each."""
    words = [tuple(word.lower() for word in _WORD.findall(name)) for name in names]
    runs = _runs(words, 0, len(names), 0)
    out: list[tuple[int, int]] = []
    for first, stop in runs:
        before = out[-1] if out else (0, 0)
        is_tiny = min(stop - first, before[1] - before[0]) <= 2
        if out and is_tiny and stop - before[0] <= MOST_DIMS:
            out[-1] = before[0], stop
        else:
            out.append((first, stop))
    return out


def _runs(words: Sequence[tuple[str, ...]], first: int, stop: int, depth: int) -> list[tuple[int, int]]:
    if stop - first <= MOST_DIMS:
        return [(first, stop)] if stop > first else []
    if depth >= max(len(one) for one in words[first:stop]) or depth > 8:
        return [(at, min(stop, at + MOST_DIMS)) for at in range(first, stop, MOST_DIMS)]
    out: list[tuple[int, int]] = []
    at = first
    for _, run in groupby(words[first:stop], lambda name: name[depth : depth + 1]):
        n = len(list(run))
        out += _runs(words, at, at + n, depth + 1)
        at += n
    if len(out) == stop - first:  # every name differs in this word: numbers
        return [(at, min(stop, at + MOST_DIMS)) for at in range(first, stop, MOST_DIMS)]
    return out


def _split_titles(names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return (words that all names begin with, or ""; each name's rest)."""
    spans = [list(_WORD.finditer(name)) for name in names]
    n = 0
    while all(len(one) > n + 1 for one in spans) and len({one[n].group().lower() for one in spans}) == 1:
        n += 1
    if len(names) == 1 or not n:
        return "", tuple(names)
    title = " ".join(one.group().lower() for one in spans[0][:n] if len(one.group()) > 1)
    labels = tuple(name[one[n].start() :] for name, one in zip(names, spans, strict=True))
    return title or spans[0][0].group(), labels
