"""Parse untrusted JSON strictly; write canonical JSON for hashes.

The parser accepts only values that can be written again: text that UTF-8 can encode, at most 64 nested arrays and
objects, finite numbers, 64-bit integers.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

MAX_DEPTH = 64
"""Depth of nested arrays and objects; Python's own limit depends on the caller and the release."""
LEAST, MOST = -(2**63), 2**64 - 1
"""Range of integers that table columns and seeds can hold."""
_DIGITS = 20  # digits of MOST; `int` is slow for long texts, and rejects 4,300 digits
_LONG = re.compile("[0-9]{19}")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class DamagedJson(ValueError):
    """The JSON is damaged. The message describes the damage; the caller adds the object's name.

    what: member at fault, or "syntax", "depth", "number" or "surrogate". value: its value, its position, or the type of
    the whole document.
    """

    def __init__(self, message: str, *, what: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.what = what
        self.value = value


class DamagedMember(DamagedJson, TypeError):
    """A member of the object has a value of another type, or out of range."""


def damage_fields(error: Exception, what: str) -> dict[str, object]:
    """Return the fields `what` and `given` of an error about a JSON object that a reader rejected.

    error: what reading the object raised: DamagedJson, KeyError for a missing member, or a PenstockError that checked
        one member. what: name of the object, if the error does not name a member.
    """
    if isinstance(error, DamagedJson):
        return {"what": error.what or what, "given": error.value}
    if isinstance(error, KeyError):
        return {"what": error.args[0], "given": "missing"}
    fields: dict[str, object] = {"what": what, "given": str(error)}
    # A PenstockError has `fields`. They name the member and its value, and replace the object and the message.
    member_fields: dict[str, object] = getattr(error, "fields", {})
    fields.update(member_fields)
    return fields


def is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def parse_json(data: bytes | str, *, lenient: bool = False) -> Any:
    """Return the value of a JSON document. Whatever the bytes, raises nothing but DamagedJson.

    lenient: True leaves surrogates and numbers out of range (inf, nan) to the caller.
    """

    def decoder(text: str) -> json.JSONDecoder:
        if lenient:
            return _LENIENT
        if _LONG.search(text):
            return _WITH_LONG
        return _PLAIN

    text, value = _decode(data, decoder)
    # (decoded bytes contain no surrogate, and our own text rarely does; an escape can produce one in both)
    if not lenient and (_HALF.search(text) or (isinstance(data, str) and not is_text(data))):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            message = "it holds half a character (a lone surrogate), which is not text"
            raise DamagedJson(message, what="surrogate") from None
    return value


def parse_json_object(data: bytes | str, *, lenient: bool = False) -> dict[str, Any]:
    value = parse_json(data, lenient=lenient)
    if not isinstance(value, dict):
        raise DamagedJson(f"it is a {type(value).__name__}, expected an object", value=type(value).__name__)
    return value


def parse_members(data: bytes) -> dict[str, Any]:
    """Return the members of a JSON object of another program, such as a document in an archive. Raises: DamagedJson.

    Its values become columns, so this accepts more than `parse_json_object`. NaN becomes None, for a missing value, and
    an infinite number stays. An integer beyond 64 bits becomes its text. The caller must handle surrogates. If a name
    is repeated, its last value wins.
    """

    def decoder(text: str) -> json.JSONDecoder:
        # A function of ours for each integer is slow, so only a text with a long number takes that decoder.
        if _LONG.search(text):
            return _LONG_AS_TEXT
        return _AS_WRITTEN

    _, value = _decode(data, decoder)
    if not isinstance(value, dict):
        raise DamagedJson(f"it is a {type(value).__name__}, expected an object", value=type(value).__name__)
    return value


def text_member(body: Mapping[str, Any], name: str) -> str:
    """Return an object's member that must be a text. Raises: KeyError; DamagedMember, which is also a TypeError."""
    value = body[name]
    if not is_text(value):
        raise DamagedMember(f"{name} = {value!r:.80} is not text", what=name, value=value)
    text: str = value
    return text


def integer_member(
    body: Mapping[str, Any],
    name: str,
    least: int,
    most: int | None = None,
) -> int:
    """Return an object's member that must be a whole number in a range.

    Raises: KeyError; DamagedMember, which is also a TypeError.
    """
    value = body[name]
    accepted = f"from {least} on"
    if most is not None:
        accepted = f"from {least} to {most}"
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    is_in_range = is_integer and value >= least and (most is None or value <= most)
    if not is_in_range:
        message = f"{name} = {value!r:.80}, a whole number {accepted} is needed"
        raise DamagedMember(message, what=name, value=value)
    return int(value)


def canonical_json(value: object, where: str = "the value") -> bytes:
    """Return UTF-8 JSON with sorted keys, no spaces and minimal escapes: equal values have the same bytes.

    where: name of the value, for messages. Raises: TypeError for a float (its text varies), a key that is not text, or
    anything else that JSON cannot hold.
    """
    if wrong := _wrong(value):
        raise TypeError(f"{where}{wrong}")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _wrong(value: object) -> str:
    if isinstance(value, dict):
        for name, part in value.items():
            if not isinstance(name, str):
                return f": key {name!r} is not a string, and JSON holds no other"
            if wrong := _wrong(part):
                return f".{name}{wrong}"
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            if wrong := _wrong(part):
                return f"[{number}]{wrong}"
    elif value is not None and not isinstance(value, str | int):
        return (
            f" = {value!r} is a {type(value).__name__}; canonical JSON holds strings, whole numbers, true, false, "
            "null, lists and objects, and no floats: write a fraction as a string, or as an integer with its unit"
        )
    return ""


def _decode(data: bytes | str, decoder: Callable[[str], json.JSONDecoder]) -> tuple[str, Any]:
    """Return the text of a JSON document and its value. decoder: returns the decoder for a text."""
    try:
        text = data if isinstance(data, str) else data.decode(json.detect_encoding(data))
        value = decoder(text).decode(text)
    except RecursionError:
        raise _too_deep() from None
    except DamagedJson:
        raise
    except ValueError as error:
        position = getattr(error, "pos", None)
        raise DamagedJson(str(error), what="syntax", value=position) from error
    _check_depth(value)
    return text, value


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            item
            for child in level
            for item in (child.values() if isinstance(child, dict) else child)
            if item.__class__ is dict or item.__class__ is list
        ]
    if level:
        raise _too_deep()


def _too_deep() -> DamagedJson:
    message = f"more than {MAX_DEPTH} arrays and objects are in one another"
    return DamagedJson(message, what="depth")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        message = f"the number {text[:_DIGITS]} is beyond what a float holds"
        raise DamagedJson(message, what="number", value=text)
    return value


def _whole(text: str) -> int:
    if len(text) > _DIGITS + 1 or not LEAST <= (value := int(text)) <= MOST:
        message = f"the integer {text[: _DIGITS + 1]}... is not from -2^63 to 2^64 - 1"
        raise DamagedJson(message, what="number", value=text)
    return value


def _no_number(text: str) -> NoReturn:
    raise DamagedJson(f"{text} is not a finite number", what="number", value=text)


_PLAIN = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)
_WITH_LONG = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number, parse_int=_whole)
_LENIENT = json.JSONDecoder(parse_int=lambda text: int(text) if len(text) <= _DIGITS else float(text))
_AS_WRITTEN = json.JSONDecoder(parse_constant={"Infinity": math.inf, "-Infinity": -math.inf}.get)
_LONG_AS_TEXT = json.JSONDecoder(
    parse_constant=_AS_WRITTEN.parse_constant,
    parse_int=lambda text: text if len(text) > _DIGITS or not -(2**63) <= int(text) < 2**63 else int(text),
)
