"""Decode and encode text, JSON and class labels: the words txt, json, jsonl and cls."""

from __future__ import annotations

import json
import re

import numpy as np

from ..errors import DecodeFailed, InvalidField
from .fields import Buffer

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# int() would also accept '1_000', '+3' and other scripts' digits; a label is plain ASCII.
_LABEL = re.compile(rb"\s*(-?[0-9]{1,19})\s*", re.ASCII)


def decode_txt(data: Buffer, rng: np.random.Generator | None = None) -> str:
    """Return UTF-8 text as str, unchanged: no newline translation, no byte order mark removed.

    Raises: DecodeFailed if the bytes are not UTF-8.
    """
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise DecodeFailed(f"txt: not UTF-8: {error}", what="txt", given="no UTF-8") from error


def decode_json(data: Buffer, rng: np.random.Generator | None = None) -> object:
    """Return a UTF-8 JSON document as Python objects. Accepts NaN and Infinity, which Python writes.

    Raises: DecodeFailed if the bytes are not UTF-8 or not JSON, or are nested too deeply.
    """
    return _loads(data, "json")


def decode_jsonl(data: Buffer, rng: np.random.Generator | None = None) -> list[object]:
    """Return one JSON document per nonblank line. Raises: DecodeFailed, which names the line (from 1)."""
    # Not splitlines: a carriage return is white space inside a document.
    lines = bytes(data).split(b"\n")
    return [_loads(line, "jsonl", f"line {n}") for n, line in enumerate(lines, 1) if line.strip()]


def decode_cls(data: Buffer, rng: np.random.Generator | None = None) -> int:
    """Return a class label: decimal ASCII digits with an optional minus, within int64. Surrounding blanks are ignored.

    Raises: DecodeFailed.
    """
    match = _LABEL.fullmatch(data)
    value = None
    if match:
        value = int(match[1])
    if value is None or not INT64_MIN <= value <= INT64_MAX:
        raise DecodeFailed(
            f"cls: {bytes(data[:40])!r} is not a decimal integer within int64",
            what="cls",
            given=f"{bytes(data[:40])!r}",
        )
    return value


def encode_txt(field: str, value: object) -> bytes:
    """Return a str as UTF-8. Raises: InvalidField if it is not a str or has lone surrogates."""
    if not isinstance(value, str):
        raise InvalidField(
            f"field {field!r} takes str or bytes, got {_kind(value)}",
            what=field,
            given=_kind(value),
            accepted="str or bytes",
        )
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidField(
            f"field {field!r}: the str cannot be written as UTF-8: {error}",
            what=field,
            given=str(error),
            accepted="UTF-8",
        ) from error


def encode_json(field: str, value: object) -> bytes:
    """Return JSON in UTF-8, keys in order. Keys that are not str are converted as in `json.dumps`.

    Raises: InvalidField for NaN, Infinity, a cycle, or a value that JSON cannot hold.
    """
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidField(
            f"field {field!r} takes bytes or what JSON holds (dict list str int bool None, finite float); "
            f"got {_kind(value)}: {error}",
            what=field,
            given=_kind(value),
            accepted="JSON",
        ) from error


def encode_jsonl(field: str, value: object) -> bytes:
    """Return one JSON document and a newline per item. Raises: InvalidField if it is not a list; as `encode_json`."""
    if not isinstance(value, list | tuple):
        raise InvalidField(
            f"field {field!r} takes bytes or a list of what JSON holds, got {_kind(value)}",
            what=field,
            given=_kind(value),
            accepted="bytes or a list",
        )
    return b"".join(encode_json(field, item) + b"\n" for item in value)


def encode_cls(field: str, value: object) -> bytes:
    """Return an int or numpy integer as decimal digits. Raises: InvalidField, also for bool and outside int64."""
    # bool is a subclass of int, and a reader would return 1 for True.
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidField(
            f"field {field!r} takes int within int64 or bytes, got {_kind(value)}: {value!r:.40}",
            what=field,
            given=value,
            accepted="int within int64 or bytes",
        )
    if not INT64_MIN <= int(value) <= INT64_MAX:
        raise InvalidField(
            f"field {field!r} takes int within int64, got {int(value)}",
            what=field,
            given=int(value),
            accepted="int within int64",
        )
    return b"%d" % int(value)


def _loads(data: Buffer, kind: str, line: str | None = None) -> object:
    try:
        return json.loads(str(data, "utf-8"))
    except (ValueError, RecursionError) as error:
        address = kind
        if line is not None:
            address = f"{kind}: {line}"
        # The error's type: its text is Python's, and differs between releases.
        raise DecodeFailed(
            f"{address}: {error}", what=kind, where=line, given=type(error).__name__
        ) from error


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
