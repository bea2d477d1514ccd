"""Spans of an episode: language, rows that are kept, gaps of clocks, frozen frames."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from loader.errors import Corrupt, DecodeFailed
from loader.modalities.language import FIELD as LANGUAGE
from loader.modalities.language import MAX_BYTES, LanguageLine, parse_language, time_lines
from loader.order.random.keyed_permutation import I64

from ...text import clean
from ..json_record import JsonRecord
from .open_episode import OpenEpisode

TASKS = ("task.txt", "task", "language_instruction")
"""Field and columns with a task, in order of preference."""
MAX_TASK_BYTES = 2**20
"""Largest field with a task, in bytes."""
MOST_SPANS = 2000
"""Most spans of a kind that are shown."""
GAP_PERIODS = 3
"""Median periods of a clock above which two values are a gap apart."""
_TEXT = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSpan(JsonRecord):
    """A part of the axis."""

    first_ns: int
    """ns (or steps) after the axis's start."""
    last_ns: int
    """Excluded end."""
    text: str
    """Text, or the kind of fault."""
    kind: str
    """Style of language, or "keep", "gap", "frozen"."""
    detail: str = ""
    """Role, camera and tool calls of language, or a field."""


def language_spans(episode: OpenEpisode, columns: Mapping[str, str]) -> tuple[tuple[EpisodeSpan, ...], str]:
    """Return (language lines by style and time, error or ""). Without lines, the task is one span."""
    try:
        if LANGUAGE in episode.names:
            spans = _lines(episode)
            return spans[:MOST_SPANS], omission_text(len(spans), "lines of language")
        task = _task(episode, columns)
    except Corrupt as error:
        return (), clean(error, 600)
    whole = EpisodeSpan(first_ns=0, last_ns=episode.length_ns, text=task, kind="task")
    return ((whole,) if task else ()), ""


def _task(episode: OpenEpisode, columns: Mapping[str, str]) -> str:
    for name in TASKS:
        # A field first: a column of the same name is a copy of it, perhaps cut.
        if name in episode.names and episode.fields[name].address.nbytes <= MAX_TASK_BYTES:
            data = episode.fields[name].whole()
            return clean(data.decode("utf-8", "replace"), _TEXT)
        if columns.get(name):
            return clean(columns[name], _TEXT)
    return ""


def _lines(episode: OpenEpisode) -> tuple[EpisodeSpan, ...]:
    field = episode.fields[LANGUAGE]
    if field.address.nbytes > MAX_BYTES:
        raise DecodeFailed(f"{LANGUAGE} has {field.address.nbytes} bytes; up to {MAX_BYTES} are shown")
    by_style: dict[str, list[LanguageLine]] = {}
    for line in parse_language(field.whole()):
        by_style.setdefault(line.style or "", []).append(line)
    spans: list[EpisodeSpan] = []
    for style, lines in sorted(by_style.items()):
        for line, end_ns in time_lines(lines, _end(episode)):
            spans.append(
                EpisodeSpan(
                    first_ns=line.start_ns - episode.origin_ns,
                    last_ns=end_ns - episode.origin_ns,
                    text=clean(line.text or _calls(line.tool_calls), _TEXT),
                    kind=clean(style, 40),
                    detail=", ".join(_details(line)),
                )
            )
    return tuple(spans)


def omission_text(n: int, what: str) -> str:
    """Return that only the first spans are shown; "" if all are."""
    if n <= MOST_SPANS:
        return ""
    return f"the first {MOST_SPANS:,} of {n:,} {what} are shown"


def _end(episode: OpenEpisode) -> int:
    return episode.origin_ns + episode.length_ns


def _details(line: LanguageLine) -> Iterable[str]:
    for text in (line.role, line.camera):
        if text:
            yield clean(text, 80)
    if line.text and line.tool_calls:
        yield _calls(line.tool_calls)


def _calls(calls: object) -> str:
    return clean(json.dumps(calls), _TEXT) if calls else ""


def keep_spans(episode: OpenEpisode, anchor: str) -> tuple[tuple[EpisodeSpan, ...], int, str]:
    """Return (spans of true rows of `keep.npy`, their number or -1 without one, error or "")."""
    try:
        keep = episode.keep()
        if keep is None or not anchor:
            return (), -1, ""
        n = episode.n_values(anchor)
        if len(keep) != n:
            raise DecodeFailed(f"keep.npy has {len(keep)} rows, {anchor} has {n}")
    except Corrupt as error:
        return (), -1, clean(error, 600)
    # False at both ends: a run that touches an end has two edges too. int8, since numpy subtracts no booleans.
    edges = np.flatnonzero(np.diff(np.concatenate([[False], keep, [False]]).astype(np.int8)))
    stretches = edges.reshape(-1, 2)  # [spans, 2]: first row, and the one after the last
    spans = tuple(
        EpisodeSpan(
            first_ns=episode.time_of(anchor, first),
            # The last row lasts until the episode's end, which is not among the rows' times.
            last_ns=episode.length_ns if stop == n else episode.time_of(anchor, stop),
            text="keep",
            kind="keep",
        )
        for first, stop in stretches[:MOST_SPANS].tolist()
    )
    return spans, int(keep.sum()), omission_text(len(stretches), "stretches of kept rows")


def fault_spans(episode: OpenEpisode) -> tuple[tuple[EpisodeSpan, ...], str]:
    """Return (clocks' gaps, and runs of frames with equal bytes, by field and time; what is left out or "")."""
    spans: list[EpisodeSpan] = []
    n_spans = 0
    gaps_of: dict[str, str] = {}  # clocks that streams share are searched once
    for name, clock in episode.clocks.items():
        source = episode.clock_names[name]
        # Each video has a container of its own.
        if source == "container" or source not in gaps_of:
            gaps_of[source] = name
            n_spans += _add_gaps(episode, name, clock, spans)
    for name, camera in episode.cameras.items():
        if camera.table is not None and camera.timeline is not None and name not in episode.errors:
            shown = camera.timeline.shown
            # bool [frames - 1]: packets equal in checksum and size. int64: a difference of uint32 would wrap.
            same = (np.diff(camera.table.crc32c[shown].astype(np.int64)) == 0) & (
                np.diff(camera.table.size[shown]) == 0
            )
            n_spans += _add_frozen(episode, name, same, spans)
    return tuple(spans[:MOST_SPANS]), omission_text(n_spans, "gaps and frozen spans")


def _add_gaps(episode: OpenEpisode, name: str, clock: I64, spans: list[EpisodeSpan]) -> int:
    """Add the first gaps of a clock, and return the number of all."""
    steps = np.diff(clock)
    if len(steps) < 2:
        return 0
    # Relative to the median, so that one rule fits 5 Hz cameras and 1 kHz sensors.
    wide = np.flatnonzero(steps > GAP_PERIODS * np.median(steps))
    for row in wide[:MOST_SPANS].tolist():
        gap = EpisodeSpan(
            first_ns=int(clock[row]) - episode.origin_ns,
            last_ns=int(clock[row + 1]) - episode.origin_ns,
            text=f"gap of {int(steps[row]) / 1e6:,.4g} ms",
            kind="gap",
            detail=clean(name, 200),
        )
        spans.append(gap)
    return len(wide)


def _add_frozen(episode: OpenEpisode, name: str, same: np.ndarray, spans: list[EpisodeSpan]) -> int:
    """Add the first runs of equal frames, and return the number of all. same: bool [frames - 1]."""
    # [2 * stretches]: edges of runs of True, as in `keep_spans`.
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    stretches = edges.reshape(-1, 2)
    for first, stop in stretches[:MOST_SPANS].tolist():
        frozen = EpisodeSpan(
            first_ns=episode.time_of(name, first),
            last_ns=episode.time_of(name, stop),
            # n equal pairs in a row are n + 1 frames.
            text=f"{stop - first + 1} frames of equal bytes",
            kind="frozen",
            detail=clean(name, 200),
        )
        spans.append(frozen)
    return len(stretches)
