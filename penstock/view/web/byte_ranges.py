"""The Range of a request as RFC 9110 defines it (sections 13.1.5 and 14)."""

import re

from starlette.requests import Request

_SPEC = re.compile(r"([0-9]*)-([0-9]*)")
_DIGITS = 18
"""Digits of a number compared exactly; a longer one is beyond every representation."""


def range_of(request: Request, nbytes: int, etag: str) -> range | None:
    """Return the requested bytes: None for all, an empty range for status 416.

    Only GET has ranges. Other units, malformed ranges, several satisfiable ranges and an If-Range with another ETag
    select all bytes.
    """
    header = request.headers.get("range", "")
    if not header or request.method != "GET" or request.headers.get("if-range", etag) != etag:
        return None
    unit, _, text = header.partition("=")
    if unit.strip().lower() != "bytes":
        return None
    specs = [_SPEC.fullmatch(one.strip(" \t")) for one in text.split(",") if one.strip(" \t")]
    asked = [_bytes_of(spec[1], spec[2], nbytes) if spec else None for spec in specs]
    ranges = [one for one in asked if one is not None]
    if not ranges or len(ranges) < len(asked):
        return None
    satisfiable = [one for one in ranges if one]
    return satisfiable[0] if len(satisfiable) == 1 else None if satisfiable else range(0)


def _bytes_of(first: str, last: str, nbytes: int) -> range | None:
    """Return a spec's bytes, empty if not satisfiable; None if malformed."""
    if not first:
        return range(max(0, nbytes - _number(last)), nbytes) if last else None
    if last and _number(last) < _number(first):
        return None
    stop = min(nbytes, _number(last) + 1) if last else nbytes
    return range(min(_number(first), nbytes), stop)


def _number(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= _DIGITS else 10**_DIGITS
