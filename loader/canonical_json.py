"""Canonical JSON: one text per content, so that a hash names it."""

import json


def canonical_json(value: object, where: str = "the value") -> bytes:
    """Return UTF-8 JSON with sorted keys, no spaces and no escapes beyond JSON's own: equal values have the same bytes.

    where: name of the value, for the message. Raises: TypeError for a float (its text is not the same everywhere), for
    a key that is not text, and for anything else that JSON does not hold.
    """
    if wrong := _wrong(value):
        raise TypeError(f"{where}{wrong}")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _wrong(value: object) -> str:
    """Return the place in the value that has no canonical JSON, and why; "" where all has."""
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
