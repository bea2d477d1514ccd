"""JSON as somebody else may have written it: one rule of what is damaged, for every reader.

Taken is what can be written again: text that UTF-8 holds, at most 64 arrays and objects in one another, finite numbers,
integers of 64 bits. `json.loads` alone gives half characters, NaN and 1e999, which fail whoever writes them to a table
later, and ends with a RecursionError where brackets are deep.
"""

import json
import re
from typing import Any, NoReturn

from .storage.store import is_text

MAX_DEPTH = 64
"""Arrays and objects in one another. A fixed number: Python's own limit depends on who calls, and on its release."""
LEAST, MOST = -(2**63), 2**64 - 1
"""Integers: those of a table's columns, and seeds."""
_DIGITS = 20  # of MOST; `int` refuses more than 4,300, and takes long over them
_LONG = re.compile("[0-9]{19}")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class DamagedJson(ValueError):
    """The damage, for the reader to say of which object."""


def parse_json(data: bytes | str, *, lenient: bool = False) -> Any:
    """Return the value of a JSON document. Raises: DamagedJson, and nothing else, whatever the bytes are.

    lenient: half characters and numbers out of range (inf, nan) are the caller's to find, so that they spoil only what
    they stand in.
    """
    try:
        text = data if isinstance(data, str) else data.decode(json.detect_encoding(data))
        reader = _LENIENT if lenient else _WITH_LONG if _LONG.search(text) else _PLAIN
        value = reader.decode(text)
    except RecursionError:
        raise _too_deep() from None
    except DamagedJson:
        raise
    except ValueError as error:
        raise DamagedJson(str(error)) from error
    _check_depth(value)
    # Bytes hold no half character once they are decoded, and text of ours seldom; an escape can spell one in both.
    if not lenient and (_HALF.search(text) or (isinstance(data, str) and not is_text(data))):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise DamagedJson("it holds half a character (a lone surrogate), which is no text") from None
    return value


def parse_json_object(data: bytes | str, *, lenient: bool = False) -> dict[str, Any]:
    """Return the value of a document that is an object, as `parse_json`. Raises: DamagedJson."""
    value = parse_json(data, lenient=lenient)
    if not isinstance(value, dict):
        raise DamagedJson(f"it is a {type(value).__name__}, expected an object")
    return value


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            item
            for some in level
            for item in (some.values() if isinstance(some, dict) else some)
            if item.__class__ is dict or item.__class__ is list
        ]
    if level:
        raise _too_deep()


def _too_deep() -> DamagedJson:
    return DamagedJson(f"more than {MAX_DEPTH} arrays and objects are in one another")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise DamagedJson(f"the number {text[:_DIGITS]} is beyond what a float holds")
    return value


def _whole(text: str) -> int:
    if len(text) > _DIGITS + 1 or not LEAST <= (value := int(text)) <= MOST:
        raise DamagedJson(f"the integer {text[: _DIGITS + 1]}... is not from -2^63 to 2^64 - 1")
    return value


def _no_number(text: str) -> NoReturn:
    raise DamagedJson(f"{text} is no finite number")


_PLAIN = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)
_WITH_LONG = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number, parse_int=_whole)
_LENIENT = json.JSONDecoder(parse_int=lambda text: int(text) if len(text) <= _DIGITS else float(text))

__all__ = ["LEAST", "MAX_DEPTH", "MOST", "DamagedJson", "parse_json", "parse_json_object"]
