"""Convert between `language.jsonl` and LeRobot's tasks and columns `language_persistent`, `language_events`.

A task is a line of style `task`. A persistent text holds until the next of its style. An event holds for 1 ns, so that
only its row's window has it. Columns are as in LeRobot 0.6, `lerobot/datasets/language.py`.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from loader.errors import Corrupt, InvalidSample
from loader.json_text import DamagedJson, parse_json
from loader.modalities.language import FIELD, MAX_LINES, ActiveText, LanguageLine, parse_language

from .language_texts import EpisodeTexts, TextRun
from .rows import I64, EpisodeRows, TextSpan, feature_named, timestamp_seconds, value_runs

PERSISTENT = "language_persistent"
EVENTS = "language_events"
COLUMNS = PERSISTENT, EVENTS
TASK = "task"
SUBTASK = "subtask"
"""Styles of LeRobot's tasks, and of the subtasks that rows index."""
SPEAKER = "assistant"
"""Role of subtasks, as in LeRobot's own language columns."""
EVENT_NS = 1
"""Duration of an event: only its row's window has it."""
MOST_BYTES = 2**30
"""Approximate limit on an exported episode's language columns, in bytes."""
_TEXT_BYTES = 64  # of a text without its characters
_MAX_S = 2**62 / 10**9
_MOST_APART_S = 86_400.0
"""Longest time between a text and the episode's rows: Unix seconds would make it a text that no window has."""


def language_bytes(
    texts: Mapping[str, EpisodeTexts], columns: Container[str], rows: EpisodeRows, what: str
) -> bytes:
    """Return an episode's `language.jsonl`. texts: by column. columns: language columns to read. Raises: Corrupt."""
    clock = rows.ns.tolist()
    lines = [
        LanguageLine(start_ns=clock[task["start"]], style=TASK, text=task["task"]) for task in rows.tasks
    ]
    lines += subtask_lines(rows.subtasks, rows.ns)
    for name in COLUMNS:
        if name not in columns:
            continue
        with feature_named(name):
            if name not in texts:
                raise Corrupt(f"{what}: no column {name!r}", what=f"column {name!r}", where=what)
            try:
                runs = texts[name].checked()
                if name == PERSISTENT:
                    lines += _persistent(runs, rows.seconds, clock)
                else:
                    lines += _events(runs, clock)
            except Corrupt as error:
                raise error.with_message(f"{what}: {name}: {error}", where=f"{what}: {name}") from None
            except (DamagedJson, RecursionError) as error:
                raise Corrupt(f"{what}: {name}: {error}", what=name, where=what) from None
    with feature_named(FIELD):
        try:
            documents = [json.dumps(line._asdict(), ensure_ascii=False, allow_nan=False) for line in lines]
            data = "".join(f"{document}\n" for document in documents).encode()
            parse_language(data)  # the bounds and types of every other language
        except (Corrupt, RecursionError, TypeError, ValueError) as error:
            message = f"{what}: language: {error}"
            raise Corrupt(message, what="language", where=what, given=str(error)) from None
    return data


def subtask_lines(spans: Sequence[TextSpan], ns: I64) -> list[LanguageLine]:
    """Return a line for each span of rows. ns: int64 [rows]: times of the rows."""
    lines = []
    starts = {span.start for span in spans}
    for span in spans:
        start_ns = int(ns[span.start])
        end_ns = None  # until the next subtask, or the episode's end
        if span.stop not in starts and span.stop < len(ns):
            end_ns = int(ns[span.stop])
        lines.append(
            LanguageLine(start_ns=start_ns, end_ns=end_ns, style=SUBTASK, role=SPEAKER, text=span.text)
        )
    return lines


def _persistent(runs: Sequence[TextRun], seconds: Any, clock: list[int]) -> Iterator[LanguageLine]:
    times = seconds.astype(np.float32).tolist()
    row_of: dict[float, int] = {}
    for row, time in enumerate(times):
        row_of.setdefault(time, row)  # the first of rows with one time
    for line in _structs(runs[0].structs):
        time = line.get("timestamp")
        if not isinstance(time, float) or not abs(time) <= _MAX_S:
            message = f"timestamp {time!r:.40}; seconds are needed"
            raise Corrupt(message, what="timestamp", given=time, accepted="seconds")
        time = float(np.float32(time))
        if not times[0] - _MOST_APART_S <= time <= times[-1] + _MOST_APART_S:
            raise Corrupt(
                f"timestamp {time:.3f} is on another clock than the episode's rows, which have {times[0]:.3f} to "
                f"{times[-1]:.3f} s; seconds since the first row are needed",
                what="timestamp",
                given=time,
                accepted="seconds since the first row",
            )
        if time in row_of:
            start_ns = clock[row_of[time]]
        else:
            start_ns = math.floor(Fraction(time) * 10**9)
        yield _line(line, start_ns, None)
    if len(runs) > 1:
        raise Corrupt(
            f"row {runs[1].first} differs from row 0; an episode has the same texts in all of its rows",
            what="row",
            given=runs[1].first,
            accepted="the texts of row 0",
        )


def _events(runs: Sequence[TextRun], clock: list[int]) -> Iterator[LanguageLine]:
    n_events = 0
    for run in runs:
        if not run.structs:
            continue
        for row in range(run.first, run.stop):
            n_events += len(run.structs)
            if n_events > MAX_LINES:
                message = f"row {row}: more than {MAX_LINES} events"
                raise Corrupt(message, what="events", given=row, accepted=MAX_LINES)
            for line in _structs(run.structs):
                yield _line(line, clock[row], clock[row] + EVENT_NS)


def _structs(structs: list[Any]) -> list[dict[str, Any]]:
    if len(structs) > MAX_LINES:
        message = f"more than {MAX_LINES} texts"
        raise Corrupt(message, what="texts", given=len(structs), accepted=MAX_LINES)
    if None in structs:
        raise Corrupt("a text is null", what="text", given="null")
    return structs


def _line(struct: Mapping[str, Any], start_ns: int, end_ns: int | None) -> LanguageLine:
    calls = struct.get("tool_calls")
    if struct.get("style") == TASK:
        message = f"a text of style {TASK!r}, which LeRobot has in meta/tasks only"
        raise Corrupt(message, what="style", given=TASK)
    if calls is not None:
        if not isinstance(calls, list):
            message = f"tool_calls {calls!r:.80}; a list is needed"
            raise Corrupt(message, what="tool_calls", given=calls, accepted="a list")
        calls = [_tool_call(call) for call in calls]
    return LanguageLine(
        start_ns=start_ns,
        end_ns=end_ns,
        style=struct.get("style"),
        role=struct.get("role"),  # type: ignore[arg-type]  # checked with the line
        text=struct.get("content"),
        camera=struct.get("camera"),
        tool_calls=calls,
    )


def _tool_call(call: Any) -> Any:
    """Return a call: JSON text, as Arrow stores pa.json_(), or a struct."""
    if isinstance(call, str):
        try:
            return parse_json(call)
        except DamagedJson as error:
            raise Corrupt(str(error), what="tool call", given=call) from None
    return _without_nulls(call)


def _without_nulls(value: Any) -> Any:
    """Drop null members, which Arrow adds to a call if another call has them."""
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_without_nulls(part) for part in value]
    return value


def task_turns(lines: Sequence[LanguageLine], ns: I64) -> list[dict[str, Any]]:
    """Return the tasks in turn, with `start` row, `stop` row and text `task`; empty if a row has none."""
    task = ActiveText(line for line in lines if line.style == TASK and line.text is not None)
    runs = value_runs([task.at(time) for time in ns.tolist()])
    if any(text is None for text, _, _ in runs):
        return []
    return [{"start": start, "stop": stop, "task": text} for text, start, stop in runs]


def needed_columns(lines: Sequence[LanguageLine], ns: I64) -> set[str]:
    """Return the columns that the lines need."""
    times = set(ns.tolist())
    columns = set()
    for line in lines:
        if line.style != TASK:
            columns.add(EVENTS if _is_event(line, times) else PERSISTENT)
    return columns


def columns_nbytes(lines: Sequence[LanguageLine], ns: I64) -> int:
    """Return the approximate bytes of the lines' columns: LeRobot repeats persistent texts in each row.

    Raises: InvalidSample above `MOST_BYTES`.
    """
    times = set(ns.tolist())
    nbytes = 0
    n_repeated = 0
    for line in lines:
        if line.style == TASK:
            continue
        repeats = 1 if _is_event(line, times) else len(ns)
        n_repeated += repeats > 1
        document = json.dumps(_struct(line), ensure_ascii=False)
        nbytes += repeats * (_TEXT_BYTES + len(document.encode()))
    if nbytes > MOST_BYTES:
        size = f"language of {nbytes} bytes, as LeRobot repeats {n_repeated} texts in each of {len(ns)} rows"
        message = f"{size}; up to {MOST_BYTES} are written"
        raise InvalidSample(message, what="language", given=nbytes, accepted=MOST_BYTES)
    return nbytes


def inexact(lines: Sequence[LanguageLine], ns: I64, fps: Fraction) -> str | None:
    """Return what LeRobot's columns cannot hold of the lines, or None."""
    times = set(ns.tolist())
    task = ActiveText(line for line in lines if line.style == TASK and line.text is not None)
    has_task = any(line.style == TASK and line.text is not None for line in lines)
    if has_task and None in map(task.at, times):
        return "a row has no task, and LeRobot's rows each have one"
    starts = _starts(lines)
    stamps = set(timestamp_seconds(ns, fps).tolist())
    for line in lines:
        if _is_event(line, times):
            continue
        if line.style == TASK:
            if line.start_ns not in times or line != LanguageLine(*line[:3], text=task.at(line.start_ns)):
                return f"the task at {line.start_ns} ns becomes one of whole rows, its text only"
        elif line.start_ns not in times:
            seconds = _seconds(line.start_ns)
            if seconds in stamps or math.floor(Fraction(seconds) * 10**9) != line.start_ns:
                return f"the time {line.start_ns} ns becomes float32 seconds"
        if line.end_ns is not None and line.end_ns != _next_start(line, starts):
            return f"the text at {line.start_ns} ns ends at {line.end_ns} ns, in LeRobot where the next one begins"
    return None


def _starts(lines: Sequence[LanguageLine]) -> dict[tuple[str | None, bool], list[int]]:
    """Return (style, has a text) -> start times, ascending; False: of all lines of the style."""
    starts: dict[tuple[str | None, bool], list[int]] = {}
    for line in sorted(lines, key=lambda line: line.start_ns):
        starts.setdefault((line.style, False), []).append(line.start_ns)
        if line.text is not None:
            starts.setdefault((line.style, True), []).append(line.start_ns)
    return starts


def _next_start(line: LanguageLine, starts: Mapping[tuple[str | None, bool], list[int]]) -> int | None:
    """Return when the next line of the style starts; of lines with a text if this one has one."""
    style_starts = starts[line.style, line.text is not None]
    following = bisect_right(style_starts, line.start_ns)
    if following == len(style_starts):
        return None
    return style_starts[following]


def _is_event(line: LanguageLine, times: Container[int]) -> bool:
    return line.style != TASK and line.end_ns == line.start_ns + EVENT_NS and line.start_ns in times


def _seconds(ns: int) -> float:
    """Return the least float32 not before a time."""
    exact = Fraction(ns, 10**9)
    seconds = np.float32(float(exact))
    if Fraction(float(seconds)) < exact:
        seconds = np.nextafter(seconds, np.float32(np.inf))
    return float(seconds)


def language_column(name: str, lines: Sequence[LanguageLine], ns: I64, seconds: Any) -> Any:
    """Return a column of LeRobot 0.6. seconds: float32 [rows], as in the column `timestamp`."""
    row_of = {time: row for row, time in enumerate(ns.tolist())}
    if name == EVENTS:
        return _array(name, _row_events(lines, row_of, len(ns)))
    # LeRobot repeats all persistent texts in each row.
    persistent = _persistent_texts(lines, row_of, seconds)
    return _array(name, [persistent], repeats=len(ns))


def _row_events(
    lines: Sequence[LanguageLine], row_of: Mapping[int, int], n_rows: int
) -> list[list[dict[str, Any]]]:
    """Return each row's events. row_of: time in ns -> row."""
    events: list[list[dict[str, Any]]] = [[] for _ in range(n_rows)]
    for line in lines:
        if _is_event(line, row_of):
            row = row_of[line.start_ns]
            events[row].append(_struct(line))
    return events


def _persistent_texts(
    lines: Sequence[LanguageLine], row_of: Mapping[int, int], seconds: Any
) -> list[dict[str, Any]]:
    """Return the texts that are no event of a row, with the time of their row in seconds. row_of: time in ns -> row."""
    persistent = []
    for line in lines:
        if line.style == TASK or _is_event(line, row_of):
            continue
        row = row_of.get(line.start_ns)
        if row is None:  # between two rows
            timestamp = _seconds(line.start_ns)
        else:
            timestamp = float(seconds[row])
        persistent.append({**_struct(line), "timestamp": timestamp})
    return persistent


def _struct(line: LanguageLine) -> dict[str, Any]:
    calls = None
    if line.tool_calls is not None:
        calls = [json.dumps(call, ensure_ascii=False) for call in line.tool_calls]
    return {
        "role": line.role,
        "content": line.text,
        "style": line.style,
        "camera": line.camera,
        "tool_calls": calls,
    }


def _array(name: str, values: list[list[dict[str, Any]]], repeats: int = 1) -> Any:
    """Return an Arrow array of the rows' texts. repeats: how often to repeat them; not 1 only for a single row."""
    import pyarrow as pa

    array = pa.array(values, _column_type(name, pa.string()))
    if repeats != 1:
        only_row = np.zeros(repeats, np.int64)
        array = array.take(pa.array(only_row))
    if not hasattr(pa, "json_"):  # before PyArrow 19: calls stay text
        return array
    # PyArrow makes no array of JSON from Python values, but casts texts to it.
    return array.cast(_column_type(name, pa.json_()))


def _column_type(name: str, call: Any) -> Any:
    """Return the Arrow type of a column's rows. call: Arrow type of a tool call."""
    import pyarrow as pa

    fields = [pa.field("role", pa.string()), ("content", pa.string()), ("style", pa.string())]
    if name == PERSISTENT:
        fields.append(("timestamp", pa.float32()))
    fields += [("camera", pa.string()), ("tool_calls", pa.list_(call))]
    return pa.list_(pa.struct(fields))
