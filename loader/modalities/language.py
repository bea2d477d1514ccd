"""Parse an episode's `language.jsonl`, and find the text that is active at a time."""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import Corrupt
from ..json_text import DamagedJson, parse_json_object
from ..keywords import is_whole_number

FIELD = "language.jsonl"
"""Field of an episode's language."""
MAX_LINES = 2**16
MAX_BYTES = 2**24
"""Largest `language.jsonl`."""
_MAX_NS = 2**62


class LanguageLine(NamedTuple):
    """A text, or calls of tools, that holds from `start_ns` to before `end_ns`."""

    start_ns: int
    """Nanoseconds on the episode's clock."""
    end_ns: int | None = None
    """After `start_ns`; None: until the next text of its style."""
    style: str | None = None
    """Style, such as "task" or "subtask"."""
    role: str = "user"
    """Speaker, as in a chat."""
    text: str | None = None
    """None for calls of tools only."""
    camera: str | None = None
    """Feature of the camera that the text is about."""
    tool_calls: list[Any] | None = None
    """Calls of tools, as chat templates take them."""


def parse_language(data: bytes) -> list[LanguageLine]:
    """Return the lines in order. Blank lines are skipped. Raises: Corrupt with the line's number, from 1."""
    if len(data) > MAX_BYTES:
        raise Corrupt(
            f"language has {len(data)} bytes; up to {MAX_BYTES} are read",
            what="language",
            given=len(data),
            accepted=f"up to {MAX_BYTES} bytes",
        )
    lines: list[LanguageLine] = []
    # The rest of a longer file stays one piece: splitting it costs memory for nothing.
    for number, text in enumerate(data.split(b"\n", MAX_LINES), 1):
        if not text.strip():
            continue
        if number > MAX_LINES:
            raise Corrupt(
                f"line {number}: language has more than {MAX_LINES} lines",
                what="language",
                where=f"line {number}",
                accepted=f"up to {MAX_LINES} lines",
            )
        try:
            lines.append(_line(parse_json_object(text)))
        except DamagedJson as error:
            where = f"line {number}"
            raise Corrupt(f"{where}: {error}", what=error.what, where=where, given=error.value) from None
    return lines


def _line(body: dict[str, Any]) -> LanguageLine:
    unknown = sorted(body.keys() - set(LanguageLine._fields))
    if unknown:
        accepted = ", ".join(LanguageLine._fields)
        raise DamagedJson(f"{unknown[0]!r:.80} is not part of a line; accepted: {accepted}", what=unknown[0])
    start = body.get("start_ns")
    end = body.get("end_ns")
    calls = body.get("tool_calls")
    if not _is_time(start):
        raise DamagedJson(
            f"start_ns = {start!r:.40}; whole nanoseconds are needed", what="start_ns", value=start
        )
    if end is not None and not (_is_time(end) and end > start):
        raise DamagedJson(
            f"end_ns = {end!r:.40}; null or whole nanoseconds after {start} are needed",
            what="end_ns",
            value=end,
        )
    for name in ("style", "text", "camera"):
        value = body.get(name)
        if value is not None and not isinstance(value, str):
            raise DamagedJson(f"{name} = {value!r:.40}; null or a text is needed", what=name, value=value)
    role = body.get("role", "")
    if not isinstance(role, str):
        raise DamagedJson(f"role = {role!r:.40}; a text is needed", what="role", value=role)
    if calls is not None and not isinstance(calls, list):
        raise DamagedJson(
            f"tool_calls = {calls!r:.40}; null or a list is needed", what="tool_calls", value=calls
        )
    return LanguageLine(**body)


def _is_time(value: object) -> bool:
    return is_whole_number(value, -_MAX_NS, _MAX_NS)


def time_lines(lines: Iterable[LanguageLine], end_ns: int) -> list[tuple[LanguageLine, int]]:
    """Return (line, its end in ns) of one style, by start.

    A line without a stated end is open: it ends where the next one begins.

    end_ns: end of an open line without a later one, such as the episode's.
    """
    ordered = sorted(lines, key=lambda line: line.start_ns)
    starts = sorted({line.start_ns for line in ordered})
    timed = []
    for line in ordered:
        later = bisect_right(starts, line.start_ns)
        if line.end_ns is not None:
            line_end_ns = line.end_ns
        elif later < len(starts):
            line_end_ns = starts[later]
        else:
            line_end_ns = max(line.start_ns, end_ns)
        timed.append((line, line_end_ns))
    return timed


class ActiveText:
    """The texts of one style over time: of several at once, the one that began last, then the first line."""

    def __init__(self, lines: Iterable[LanguageLine]) -> None:
        timed = time_lines(lines, _MAX_NS + 1)
        starts = {line.start_ns for line, _ in timed}
        ends = {end_ns for _, end_ns in timed}
        self._times = sorted(starts | ends)
        self._texts: list[str | None] = []
        active: list[tuple[int, int, int]] = []  # (-start, number, end): the least is the one to read
        number = 0
        for time in self._times:
            while number < len(timed) and timed[number][0].start_ns == time:
                heapq.heappush(active, (-time, number, timed[number][1]))
                number += 1
            # Only the line to read matters: one that ended below it goes once it is on top.
            while active and active[0][2] <= time:
                heapq.heappop(active)
            text = None
            if active:
                line, _ = timed[active[0][1]]
                text = line.text
            self._texts.append(text)

    def at(self, time_ns: int) -> str | None:
        place = bisect_right(self._times, time_ns) - 1
        if place >= 0:
            return self._texts[place]
        return None


def active_texts(data: bytes, styles: Sequence[str]) -> list[ActiveText]:
    """Return the texts of each style. Lines without a text are left out. Raises: Corrupt."""
    lines = [line for line in parse_language(data) if line.text is not None]
    out = []
    for style in styles:
        of_style = [line for line in lines if line.style == style]
        out.append(ActiveText(of_style))
    return out


def active_text(texts: Iterable[ActiveText], time_ns: int) -> str:
    """Return the text of the first style that has one at a time; "" if none has."""
    for style in texts:
        text = style.at(time_ns)
        if text is not None:
            return text
    return ""
