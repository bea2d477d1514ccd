"""The turns of a rollout, from `turns.jsonl`: untrusted text with bounds in the tokens."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loader.modalities.text import decode_jsonl

from ...text import clean
from ...units import length
from ..json_record import JsonRecord
from ..kinds.text import text_lines

MOST_TURN_BYTES = 4 * 2**20
"""Largest `turns.jsonl`, in bytes."""
MOST_TURNS = 400
"""Most turns listed."""
MOST_LINES = 60
"""Most lines of a turn's text."""
MOST_ANSWER_LETTERS = 280
"""Characters of a turn beside others."""
_SHORT = 400


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class RolloutTurn(JsonRecord):
    number: int
    """From 0, in the order of the file."""
    role: str
    """Such as "assistant"."""
    start: int
    """First token, or -1 without bounds in the tokens."""
    stop: int
    """Token after the last, or -1."""
    lines: tuple[str, ...]
    """First lines of its text, without control characters."""
    detail: str
    """Tool and its arguments, or ""."""
    duration: str
    """Such as "3.2 s", or ""."""
    checks: str
    """Checks that the environment made, as JSON, or ""."""
    error: str = ""
    """Why it is not shown as written, or ""."""


def parse_turns(data: bytes, n_tokens: int) -> tuple[tuple[RolloutTurn, ...], int]:
    """Return (the first turns, number of all). Raises: DecodeFailed."""
    lines = decode_jsonl(data)
    turns = [
        _turn(
            number,
            line,
            n_tokens,
        )
        for number, line in enumerate(lines[:MOST_TURNS])
    ]
    return tuple(turns), len(lines)


def last_text(data: bytes) -> str:
    """Return the first characters of the last turn with a text, or "". Raises: DecodeFailed."""
    for line in reversed(decode_jsonl(data)):
        if isinstance(line, dict) and isinstance(line.get("text"), str):
            text = clean(line["text"], MOST_ANSWER_LETTERS)
            if text:
                return text
    return ""


def _turn(
    number: int,
    line: object,
    n_tokens: int,
) -> RolloutTurn:
    body: Mapping[str, Any] = {}
    error = ""
    if isinstance(line, dict):
        body = line
    else:
        error = f"turn {number} is a {type(line).__name__}, not an object"
    start = body.get("start")
    stop = body.get("stop")
    bounds = (-1, -1)
    # `True` is an int for isinstance, and no token.
    if type(start) is int and type(stop) is int:
        if 0 <= start <= stop <= n_tokens:
            bounds = (start, stop)
        else:
            error = f"turn {number} is [{start}, {stop}) of {n_tokens:,} tokens"
    tool = _text(body.get("tool"), 80)
    arguments = _text(body.get("arguments"), _SHORT)
    return RolloutTurn(
        number=number,
        role=_text(body.get("role"), 40) or "no role",
        start=bounds[0],
        stop=bounds[1],
        lines=_lines(body.get("text")),
        detail=f"{tool} {arguments}".strip(),
        duration=_duration(body),
        checks=_text(body.get("checks"), _SHORT),
        error=clean(error, _SHORT),
    )


def _lines(text: object) -> tuple[str, ...]:
    if isinstance(text, str):
        return text_lines(text, most=MOST_LINES)
    shown = _text(text, _SHORT)
    return (shown,) if shown else ()


def _text(value: object, most: int) -> str:
    """Return a value of any type as one cleaned line, "" for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return clean(value, most)
    return clean(json.dumps(value, ensure_ascii=False), most)


def _duration(body: Mapping[str, Any]) -> str:
    started = body.get("started_ns")
    ended = body.get("ended_ns")
    if type(started) is not int or type(ended) is not int or not 0 <= started <= ended:
        return ""
    return length((ended - started) / 1e9)
