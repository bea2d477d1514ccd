"""Spans of an episode: language, rows that are kept, gaps of clocks, frozen frames."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loader.errors import Corrupt, DecodeFailed
from loader.json_text import parse_json_object
from loader.order.random.keyed_permutation import I64

from ...text import clean
from ..json_record import JsonRecord
from .open_episode import OpenEpisode

LANGUAGE = "language.jsonl"
TASKS = ("task.txt", "task", "language_instruction")
"""Field and columns with an episode's task, in order of preference."""
MAX_LANGUAGE_BYTES = 4 * 2**20
"""Most bytes of language lines that are read."""
MOST_SPANS = 2000
"""Most spans of a kind."""
GAP_PERIODS = 3
"""Periods of a clock, by its median, above which two values are a gap apart."""
_TEXT = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(JsonRecord):
    """A part of the axis."""

    first_ns: int
    """Start, ns (or steps) after the axis's start."""
    last_ns: int
    """End, excluded."""
    text: str
    """What holds there."""
    kind: str
    """Style of language, or "keep", "gap", "frozen"."""
    detail: str = ""
    """Role, camera and tool calls of language, or a field."""


def language_spans(episode: OpenEpisode, columns: Mapping[str, str]) -> tuple[tuple[Span, ...], str]:
    """Return (language lines in order of style and time, error or ""). Without lines, the task is one span."""
    try:
        if LANGUAGE in episode.names:
            return _lines(episode), ""
        task = _task(episode, columns)
    except Corrupt as error:
        return (), clean(error, 600)
    whole = Span(first_ns=0, last_ns=episode.length_ns, text=task, kind="task")
    return ((whole,) if task else ()), ""


def _task(episode: OpenEpisode, columns: Mapping[str, str]) -> str:
    for name in TASKS:
        if name in episode.names and episode.fields[name].address.nbytes <= MAX_LANGUAGE_BYTES:
            data = episode.fields[name].whole()
            return clean(data.decode("utf-8", "replace"), _TEXT)
        if columns.get(name):
            return clean(columns[name], _TEXT)
    return ""


def _lines(episode: OpenEpisode) -> tuple[Span, ...]:
    field = episode.fields[LANGUAGE]
    if field.address.nbytes > MAX_LANGUAGE_BYTES:
        raise DecodeFailed(
            f"{LANGUAGE} has {field.address.nbytes} bytes; up to {MAX_LANGUAGE_BYTES} are shown"
        )
    lines = [line for line in field.whole().split(b"\n") if line.strip()]
    parsed = []
    for number, line in enumerate(lines[:MOST_SPANS], 1):
        try:
            body = parse_json_object(line)
            end = body.get("end_ns")
            times = [body["start_ns"], *([] if end is None else [end])]
            if any(type(time) is not int or abs(time) > 2**62 for time in times):
                raise ValueError(f"its times are {clean(times, 80)}; whole numbers of ns are needed")
        except (ValueError, KeyError, TypeError) as error:
            raise DecodeFailed(f"{LANGUAGE} line {number}: {type(error).__name__}: {error}") from error
        parsed.append((clean(body.get("style") or "", 40), *times[:1], end, body))
    parsed.sort(key=lambda one: one[:2])
    spans = []
    for (style, start, end, body), after in zip(parsed, [*parsed[1:], None], strict=True):
        if end is None:
            end = after[1] if after is not None and after[0] == style else _end(episode)
        spans.append(
            Span(
                first_ns=start - episode.origin_ns,
                last_ns=max(start, end) - episode.origin_ns,
                text=clean(body.get("text") or _calls(body.get("tool_calls")), _TEXT),
                kind=style,
                detail=", ".join(_details(body)),
            )
        )
    return tuple(spans)


def _end(episode: OpenEpisode) -> int:
    return episode.origin_ns + episode.length_ns


def _details(body: Mapping[str, Any]) -> Iterable[str]:
    for name in ("role", "camera"):
        if body.get(name):
            yield clean(body[name], 80)
    if body.get("text") and body.get("tool_calls"):
        yield _calls(body["tool_calls"])


def _calls(calls: object) -> str:
    return clean(json.dumps(calls), _TEXT) if calls else ""


def keep_spans(episode: OpenEpisode, anchor: str) -> tuple[tuple[Span, ...], int, str]:
    """Return (spans of rows with a true `keep.npy`, number of such rows or -1 without one, error or "")."""
    try:
        keep = episode.keep()
        if keep is None or not anchor:
            return (), -1, ""
        n = episode.n_values(anchor)
        if len(keep) != n:
            raise DecodeFailed(f"keep.npy has {len(keep)} rows, {anchor} has {n}")
    except Corrupt as error:
        return (), -1, clean(error, 600)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], keep, [False]]).astype(np.int8)))
    spans = tuple(
        Span(
            first_ns=episode.time_of(anchor, first),
            last_ns=episode.length_ns if stop == n else episode.time_of(anchor, stop),
            text="keep",
            kind="keep",
        )
        for first, stop in edges.reshape(-1, 2)[:MOST_SPANS].tolist()
    )
    return spans, int(keep.sum()), ""


def fault_spans(episode: OpenEpisode) -> tuple[Span, ...]:
    """Return the gaps of each clock, and runs of frames with equal bytes, by field and time."""
    spans: list[Span] = []
    gaps_of: dict[str, str] = {}  # clocks that streams share are searched once
    for name, clock in episode.clocks.items():
        source = episode.clock_names[name]
        if source == "container" or source not in gaps_of:
            gaps_of[source] = name
            spans += _gaps(episode, name, clock)
    for name, camera in episode.cameras.items():
        if camera.table is not None and camera.timeline is not None and name not in episode.errors:
            shown = camera.timeline.shown
            same = (np.diff(camera.table.crc32c[shown].astype(np.int64)) == 0) & (
                np.diff(camera.table.size[shown]) == 0
            )
            spans += _frozen(episode, name, same)
    return tuple(spans[:MOST_SPANS])


def _gaps(episode: OpenEpisode, name: str, clock: I64) -> list[Span]:
    steps = np.diff(clock)
    if len(steps) < 2:
        return []
    wide = np.flatnonzero(steps > GAP_PERIODS * np.median(steps))
    return [
        Span(
            first_ns=int(clock[row]) - episode.origin_ns,
            last_ns=int(clock[row + 1]) - episode.origin_ns,
            text=f"gap of {int(steps[row]) / 1e6:,.4g} ms",
            kind="gap",
            detail=clean(name, 200),
        )
        for row in wide[:MOST_SPANS].tolist()
    ]


def _frozen(episode: OpenEpisode, name: str, same: np.ndarray) -> list[Span]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    return [
        Span(
            first_ns=episode.time_of(name, first),
            last_ns=episode.time_of(name, stop),
            text=f"{stop - first + 1} frames of equal bytes",
            kind="frozen",
            detail=clean(name, 200),
        )
        for first, stop in edges.reshape(-1, 2)[:MOST_SPANS].tolist()
    ]
