"""Convert between `language.jsonl` and LeRobot's tasks and columns `language_persistent`, `language_events`.

A task is a line of style `task`. A persistent text holds until the next of its style. An event holds for 1 ns, so that
only its row's window has it. Columns are as in LeRobot 0.6, `lerobot/datasets/language.py`.

A column repeats an episode's texts in each row: a few bytes of Parquet decode to all of them times all rows. So some
rows are decoded at a time, and runs of equal rows are kept. Rejected: one read of the whole column.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from loader.errors import Corrupt, InvalidSample
from loader.json_text import DamagedJson, parse_json
from loader.modalities.language import FIELD, MAX_BYTES, MAX_LINES, ActiveText, LanguageLine, parse_language

from .rows import I64, EpisodeRows, TextSpan, feature_named, runs_of, seconds_of

ROWS_AT_ONCE = 32
"""Rows decoded at a time."""
OBJECT_BYTES = 2**28
"""Approximate limit on the bytes kept of an object's texts, over all episodes."""
_STRUCT_BYTES = 64  # memory per text besides its characters; nulls too


class TextRun(NamedTuple):
    """Consecutive rows with equal texts."""

    first: int
    """First row."""
    stop: int
    """Row after the last."""
    structs: list[Any]
    """Mappings, None for null; at most `MAX_LINES` + 1."""


class EpisodeTexts:
    """One column of one episode."""

    def __init__(self) -> None:
        self.runs: list[TextRun] = []
        self.n_rows = 0
        self.trouble = ""
        """Why it cannot be read, or ""."""
        self._nbytes = 0

    def add(self, values: Any, n_rows: int, room: int) -> int:
        """Append rows with equal texts; return about the bytes that they take.

        values: Arrow structs. room: most bytes to keep. Keeps nothing beyond it and the limits of language.
        """
        first, self.n_rows = self.n_rows, self.n_rows + n_rows
        if self.trouble:
            return 0
        structs = values.slice(0, MAX_LINES + 1).to_pylist()
        if self.runs and self.runs[-1].structs == structs:
            self.runs[-1] = self.runs[-1]._replace(stop=self.n_rows)
            return 0
        nbytes = int(values.nbytes) + _STRUCT_BYTES * len(structs)
        self._nbytes += nbytes
        if self._nbytes > MAX_BYTES:
            self.trouble = f"row {first}: more than {MAX_BYTES} bytes of texts; leave the column out"
            return 0
        if nbytes > room:
            self.trouble = (
                f"row {first}: the episodes of its object have more than {OBJECT_BYTES} bytes of texts; leave the "
                "column out, or write fewer episodes into an object"
            )
            return 0
        self.runs.append(TextRun(first, self.n_rows, structs))
        return nbytes

    def checked(self) -> list[TextRun]:
        """Raise DamagedJson for a column that cannot be read."""
        if self.trouble:
            raise DamagedJson(self.trouble)
        return self.runs


Texts = dict[str, dict[int, EpisodeTexts]]
"""Column -> episode -> its texts."""


def read_texts(parquet: Any, columns: Collection[str]) -> Texts:
    """Return the language columns of an open Parquet file."""
    there = [name for name in parquet.schema_arrow.names if name in columns]
    texts: Texts = {name: {} for name in there}
    room = OBJECT_BYTES
    if not there or "episode_index" not in parquet.schema_arrow.names:
        return texts
    for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=["episode_index", *there], use_threads=False):
        episodes = batch.column("episode_index").to_pylist()
        for name in there:
            room -= _add(texts[name], episodes, batch.column(name), room)
    return texts


def _add(texts: dict[int, EpisodeTexts], episodes: list[Any], column: Any, room: int) -> int:
    """Add some rows of a column; return the bytes of its texts, at most `room`."""
    import pyarrow as pa

    for episode in set(episodes):
        texts.setdefault(episode, EpisodeTexts())
    if pa.types.is_null(column.type):
        column = column.cast(pa.list_(pa.struct([])))
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    kind = column.type.value_type if is_list else column.type
    if not is_list or not (pa.types.is_struct(kind) or pa.types.is_null(kind)):
        for episode in set(episodes):
            texts[episode].trouble = f"it is {column.type}; lists of structs are needed"
        return 0
    lists = _lists(column)
    starts = [
        row
        for row in range(len(lists))
        if not row or episodes[row] != episodes[row - 1] or not lists[row].equals(lists[row - 1])
    ]
    free = room
    for start, stop in zip(starts, [*starts[1:], len(lists)], strict=True):
        free -= texts[episodes[start]].add(lists[start], stop - start, free)
    return room - free


def _lists(column: Any) -> list[Any]:
    offsets, values = column.offsets.to_pylist(), column.values
    valid = np.asarray(column.is_valid())
    return [
        values.slice(offsets[row], (offsets[row + 1] - offsets[row]) * bool(valid[row]))
        for row in range(len(column))
    ]


PERSISTENT, EVENTS = "language_persistent", "language_events"
COLUMNS = PERSISTENT, EVENTS
TASK, SUBTASK = "task", "subtask"
"""Styles of LeRobot's tasks, and of the subtasks that rows index."""
SPEAKER = "assistant"
"""Role of subtasks, as in LeRobot's own language columns."""
EVENT_NS = 1
MOST_BYTES = 2**30
"""Approximate limit on an exported episode's language columns, in bytes."""
_TEXT_BYTES = 64  # of a text without its characters
_MAX_S = 2**62 / 10**9
_MOST_APART_S = 86_400.0
"""Longest time between a text and the episode's rows: Unix seconds would make it a text that no window has."""


def language_of(
    texts: Mapping[str, EpisodeTexts], columns: Container[str], rows: EpisodeRows, what: str
) -> bytes:
    """Return an episode's `language.jsonl`. texts: by column. columns: language columns to read. Raises: Corrupt."""
    clock = rows.ns.tolist()
    lines = [LanguageLine(start_ns=clock[one["start"]], style=TASK, text=one["task"]) for one in rows.tasks]
    lines += subtask_lines(rows.subtasks, rows.ns)
    for name in (name for name in COLUMNS if name in columns):
        with feature_named(name):
            if name not in texts:
                raise Corrupt(f"{what}: no column {name!r}")
            try:
                runs = texts[name].checked()
                lines += (
                    _persistent(runs, rows.seconds, clock) if name == PERSISTENT else _events(runs, clock)
                )
            except (DamagedJson, RecursionError) as error:
                raise Corrupt(f"{what}: {name}: {error}") from None
    with feature_named(FIELD):
        try:
            data = b"".join(
                json.dumps(line._asdict(), ensure_ascii=False, allow_nan=False).encode() + b"\n"
                for line in lines
            )
            parse_language(data)  # the bounds and types of every other language
        except (Corrupt, RecursionError, TypeError, ValueError) as error:
            raise Corrupt(f"{what}: language: {error}") from None
    return data


def subtask_lines(spans: Sequence[TextSpan], ns: I64) -> list[LanguageLine]:
    """Return a line for each span of rows. ns: int64 [rows]: times of the rows."""
    lines = []
    starts = {span.start for span in spans}
    for span in spans:
        end_ns = None  # until the next subtask, or the episode's end
        if span.stop not in starts and span.stop < len(ns):
            end_ns = int(ns[span.stop])
        lines.append(
            LanguageLine(
                start_ns=int(ns[span.start]), end_ns=end_ns, style=SUBTASK, role=SPEAKER, text=span.text
            )
        )
    return lines


def _persistent(runs: Sequence[TextRun], seconds: Any, clock: list[int]) -> Iterator[LanguageLine]:
    times = seconds.astype(np.float32).tolist()
    row_of = {time: row for row, time in reversed([*enumerate(times)])}
    for line in _structs(runs[0].structs):
        time = line.get("timestamp")
        if not isinstance(time, float) or not abs(time) <= _MAX_S:
            raise DamagedJson(f"timestamp {time!r:.40}; seconds are needed")
        time = float(np.float32(time))
        if not times[0] - _MOST_APART_S <= time <= times[-1] + _MOST_APART_S:
            raise DamagedJson(
                f"timestamp {time:.3f} is on another clock than the episode's rows, which have {times[0]:.3f} to "
                f"{times[-1]:.3f} s; seconds since the first row are needed"
            )
        start = clock[row_of[time]] if time in row_of else math.floor(Fraction(time) * 10**9)
        yield _line(line, start, None)
    if len(runs) > 1:
        raise DamagedJson(
            f"row {runs[1].first} differs from row 0; an episode has the same texts in all of its rows"
        )


def _events(runs: Sequence[TextRun], clock: list[int]) -> Iterator[LanguageLine]:
    n = 0
    for run in runs:
        for row in range(run.first, run.stop) if run.structs else ():
            if (n := n + len(run.structs)) > MAX_LINES:
                raise DamagedJson(f"row {row}: more than {MAX_LINES} events")
            for line in _structs(run.structs):
                yield _line(line, clock[row], clock[row] + EVENT_NS)


def _structs(structs: list[Any]) -> list[dict[str, Any]]:
    if len(structs) > MAX_LINES:
        raise DamagedJson(f"more than {MAX_LINES} texts")
    if None in structs:
        raise DamagedJson("a text is null")
    return structs


def _line(struct: Mapping[str, Any], start: int, end: int | None) -> LanguageLine:
    calls = struct.get("tool_calls")
    if struct.get("style") == TASK:
        raise DamagedJson(f"a text of style {TASK!r}, which LeRobot has in meta/tasks only")
    if calls is not None:
        if not isinstance(calls, list):
            raise DamagedJson(f"tool_calls {calls!r:.80}; a list is needed")
        calls = [parse_json(one) if isinstance(one, str) else _without_nulls(one) for one in calls]
    return LanguageLine(
        start_ns=start,
        end_ns=end,
        style=struct.get("style"),
        role=struct.get("role"),  # type: ignore[arg-type]  # checked with the line
        text=struct.get("content"),
        camera=struct.get("camera"),
        tool_calls=calls,
    )


def _without_nulls(value: Any) -> Any:
    """Drop null members, which Arrow adds to a call if another call has them."""
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def tasks_in(lines: Sequence[LanguageLine], ns: I64) -> list[dict[str, Any]]:
    """Return the tasks in turn, with `start` row, `stop` row and text `task`; empty if a row has none."""
    task = ActiveText(line for line in lines if line.style == TASK and line.text is not None)
    runs = runs_of([task.at(time) for time in ns.tolist()])
    if any(text is None for text, _, _ in runs):
        return []
    return [{"start": start, "stop": stop, "task": text} for text, start, stop in runs]


def columns_in(lines: Sequence[LanguageLine], ns: I64) -> set[str]:
    """Return the columns that the lines need."""
    rows = set(ns.tolist())
    return {EVENTS if _is_event(line, rows) else PERSISTENT for line in lines if line.style != TASK}


def columns_nbytes(lines: Sequence[LanguageLine], ns: I64) -> int:
    """Return the approximate bytes of the lines' columns: LeRobot repeats persistent texts in each row.

    Raises: InvalidSample above `MOST_BYTES`.
    """
    rows, nbytes, repeated = set(ns.tolist()), 0, 0
    for line in (line for line in lines if line.style != TASK):
        repeats = 1 if _is_event(line, rows) else len(ns)
        repeated += repeats > 1
        nbytes += repeats * (_TEXT_BYTES + len(json.dumps(_struct(line), ensure_ascii=False).encode()))
    if nbytes > MOST_BYTES:
        raise InvalidSample(
            f"language of {nbytes} bytes, as LeRobot repeats {repeated} texts in each of {len(ns)} rows; up to "
            f"{MOST_BYTES} are written"
        )
    return nbytes


def inexact(lines: Sequence[LanguageLine], ns: I64, fps: Fraction) -> str | None:
    """Return what LeRobot's columns cannot hold of the lines, or None."""
    rows, starts = set(ns.tolist()), dict[tuple[str | None, bool], list[int]]()
    for line in sorted(lines, key=lambda line: line.start_ns):
        for is_text in {False, line.text is not None}:
            starts.setdefault((line.style, is_text), []).append(line.start_ns)
    task = ActiveText(line for line in lines if line.style == TASK and line.text is not None)
    if (TASK, True) in starts and None in map(task.at, rows):
        return "a row has no task, and LeRobot's rows each have one"
    stamps = set(seconds_of(ns, fps).tolist())
    for line in lines:
        if _is_event(line, rows):
            continue
        if line.style == TASK:
            if line.start_ns not in rows or line != LanguageLine(*line[:3], text=task.at(line.start_ns)):
                return f"the task at {line.start_ns} ns becomes one of whole rows, its text only"
        elif line.start_ns not in rows:
            seconds = _seconds(line.start_ns)
            if seconds in stamps or math.floor(Fraction(seconds) * 10**9) != line.start_ns:
                return f"the time {line.start_ns} ns becomes float32 seconds"
        own = starts[line.style, line.text is not None]
        after = bisect_right(own, line.start_ns)
        if line.end_ns is not None and line.end_ns != (own[after] if after < len(own) else None):
            return f"the text at {line.start_ns} ns ends at {line.end_ns} ns, in LeRobot where the next one begins"
    return None


def _is_event(line: LanguageLine, rows: Container[int]) -> bool:
    return line.style != TASK and line.end_ns == line.start_ns + EVENT_NS and line.start_ns in rows


def _seconds(ns: int) -> float:
    """Return the least float32 not before a time."""
    exact = Fraction(ns, 10**9)
    seconds = np.float32(float(exact))
    return float(seconds if Fraction(float(seconds)) >= exact else np.nextafter(seconds, np.float32(np.inf)))


def column_of(name: str, lines: Sequence[LanguageLine], ns: I64, seconds: Any) -> Any:
    """Return a column of LeRobot 0.6. seconds: float32 [rows], as in the column `timestamp`."""
    clock = ns.tolist()
    rows = {time: row for row, time in enumerate(clock)}
    values: list[list[dict[str, Any]]] = [[] for _ in clock]
    own = [line for line in lines if line.style != TASK]
    if name == EVENTS:
        for line in own:
            if _is_event(line, rows):
                values[rows[line.start_ns]].append(_struct(line))
    else:
        persistent = [
            _struct(line)
            | {
                "timestamp": float(seconds[rows[line.start_ns]])
                if line.start_ns in rows
                else _seconds(line.start_ns)
            }
            for line in own
            if not _is_event(line, rows)
        ]
        return _array(name, [persistent], len(clock))
    return _array(name, values)


def _struct(line: LanguageLine) -> dict[str, Any]:
    calls = line.tool_calls
    texts = None if calls is None else [json.dumps(one, ensure_ascii=False) for one in calls]
    return {
        "role": line.role,
        "content": line.text,
        "style": line.style,
        "camera": line.camera,
        "tool_calls": texts,
    }


def _array(name: str, values: list[list[dict[str, Any]]], repeats: int = 1) -> Any:
    """Return an Arrow array of the rows. repeats: how often to repeat a single row."""
    import pyarrow as pa

    def of(call: Any) -> Any:
        fields = [pa.field("role", pa.string()), ("content", pa.string()), ("style", pa.string())]
        fields += [("timestamp", pa.float32())] if name == PERSISTENT else []
        return pa.list_(pa.struct([*fields, ("camera", pa.string()), ("tool_calls", pa.list_(call))]))

    array = pa.array(values, of(pa.string()))
    array = array if repeats == 1 else array.take(pa.array(np.zeros(repeats, np.int64)))
    return array.cast(of(pa.json_())) if hasattr(pa, "json_") else array
