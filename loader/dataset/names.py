"""Rules for the names of datasets, tags, transactions, sample keys, fields, groups and columns."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import InvalidField, InvalidKey, InvalidName, InvalidSample
from ..json_text import is_text
from ..modalities import check_field as _check_field

LATEST = "latest"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TRANSACTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_RULE = "1 to 128 of A-Z a-z 0-9 . _ - and the first a letter or digit"

MAX_MEMBER_BYTES = 150
"""Longest `<key>.<field>` in UTF-8 bytes; leaves room in every tool's 255-byte file names."""

COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
GROUP = re.compile(r"[a-z0-9][a-z0-9_]{0,63}\Z")
_HIDDEN = re.compile("__[^/]*__(/|$)")
_CONTROL = re.compile("[\x00-\x1f\x7f]")


def check_key(key: object) -> str:
    """Return a valid WebDataset key, which every tar tool extracts safely. Raises: InvalidKey, with the broken rule."""
    if not isinstance(key, str):
        raise InvalidKey(
            f"key {key!r} is a {type(key).__name__}; a key is a str such as 'ep_31/0120'",
            what="key",
            given=key,
            accepted="str",
        )
    if fault := _key_fault(key):
        problem, rule = fault
        raise InvalidKey(
            f"key {key!r} {problem}; accepted: UTF-8 words separated by '/', without '.' in the last one, e.g. "
            "'ep_31/0120'. Percent-escape what you must keep (loader.escape_key) and pass the original as "
            "source={'source_key': ...}",
            what="key",
            given=key,
            accepted=rule,
        )
    return key


def _key_fault(key: str) -> tuple[str, str] | None:
    """Return what is wrong with a key, in words that follow it, and the rule; None for a valid key."""
    if not key:
        return "is empty", "at least one character"
    if key.startswith("/"):
        return "starts with '/'", "no leading '/'"
    words = key.split("/")
    if any(word in ("", ".", "..") for word in words):
        return "has an empty, '.' or '..' component", "no empty, '.' or '..' component"
    if "." in words[-1]:
        problem = "has a '.' in its last component, where the field name begins"
        return problem, "no '.' in the last component"
    if _CONTROL.search(key):
        return "contains a control character", "no control character"
    if not is_text(key):
        return "is not encodable as UTF-8", "UTF-8"
    return None


def check_field(field: object) -> str:
    """Return a field name that a decoder accepts and WebDataset does not use (`__key__`). Raises: InvalidField."""
    name = _check_field(field)
    if name.startswith("__"):
        raise InvalidField(
            f"field name {name!r} begins with '__', which readers keep for their own; rename it"
        )
    return name


def escape_key(text: str) -> str:
    """Return a valid key for any text: '%', '.', control characters and empty components are percent-escaped.

    Different texts give different keys. `urllib.parse.unquote` restores the text, except that an empty component
    becomes a lone "%".

    Raises: InvalidKey for a lone surrogate that encodes no byte of a file name.
    """
    words = []
    for word in text.split("/"):
        escaped = _UNSAFE.sub(_percent, word)
        words.append(escaped or "%")
    return "/".join(words)


_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_UNSAFE = re.compile("[%.\x00-\x1f\x7f\ud800-\udfff]")


def _percent(match: re.Match[str]) -> str:
    try:
        return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise InvalidKey(
            f"{match.string!r} has {match[0]!r}, half of a character, which no file name has; replace it, e.g. by "
            "text.encode('utf-8', 'replace').decode()",
            what="key",
            given=match.string,
        ) from None


def escape_name(text: str) -> str:
    """Return the text with each non-ASCII character as `_u<code point in hex>_`.

    Different texts give different names, except for texts that contain an escape already.
    """
    return _NOT_ASCII.sub(lambda match: f"_u{ord(match[0]):04x}_", text)


def member_name(key: str, field: str) -> str:
    """Return `<key>.<field>`. Raises: InvalidKey if it exceeds `MAX_MEMBER_BYTES`, or webdataset would skip it."""
    name = f"{key}.{field}"
    nbytes = len(name.encode())
    if nbytes > MAX_MEMBER_BYTES:
        raise InvalidKey(
            f"key {key!r} with field {field!r} is {nbytes} bytes; at most {MAX_MEMBER_BYTES} are accepted. "
            "Use a shorter key (a hash, say) and pass the long one as source={'source_key': ...}",
            what="key",
            where=f"field {field!r}",
            given=nbytes,
            accepted=MAX_MEMBER_BYTES,
        )
    if _HIDDEN.match(name):
        raise InvalidKey(
            f"key {key!r} with field {field!r} begins with '__...__', which webdataset skips as its own; rename it",
            what="key",
            where=f"field {field!r}",
            given=key,
            accepted="no key that begins with '__...__'",
        )
    return name


def member_names(keys: Sequence[str], fields: Sequence[str]) -> list[str]:
    """Return `member_name` of each field of each key, key by key."""
    names = [f"{key}.{field}" for key in keys for field in fields]
    # One look at all of them: nearly always, none can break a rule of `member_name`.
    lines = "\n".join(["", *names])
    longest = max(map(len, names), default=0)
    if lines.isascii() and longest <= MAX_MEMBER_BYTES and "\n__" not in lines:
        return names
    return [member_name(key, field) for key in keys for field in fields]


def check_group(group: str) -> str:
    """Return the name of a field group. Raises: InvalidField."""
    if not isinstance(group, str) or not GROUP.match(group):
        raise InvalidField(
            f"group {group!r} is not accepted; use lower-case letters, digits and '_', e.g. 'latents'",
            what="group",
            given=group,
        )
    return group


def check_column(name: object, reserved: frozenset[str]) -> str:
    """Return the name of a metadata column that is not reserved. Raises: InvalidField."""
    if not isinstance(name, str) or not COLUMN.match(name):
        raise InvalidField(
            f"metadata column {name!r} is not accepted; use letters, digits and '_', not starting with a digit",
            what="column",
            given=name,
            accepted="letters, digits and _, not starting with a digit",
        )
    if name in reserved:
        raise InvalidField(
            f"metadata column {name!r} is reserved; choose a name other than {sorted(reserved)}",
            what="column",
            given=name,
            accepted=f"names other than {sorted(reserved)}",
        )
    return name


def key_hash(key: str) -> bytes:
    """Return a key's sort value in the stored order: blake2b-128 of its UTF-8."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


def hashes_of(keys: Iterable[str] | pa.Array | pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return int64 [n], 0 to 2^63 - 1: the first 8 bytes of `key_hash`, without the last bit.

    keys: strings, or a string column without nulls, which needs no Python objects.
    """
    from ..native import hash_texts  # not needed for checking names

    if isinstance(keys, pa.ChunkedArray):
        chunks = keys.chunks
    elif isinstance(keys, pa.Array):
        chunks = [keys]
    else:
        chunks = [pa.array(keys, pa.string())]

    hashes = np.empty(sum(map(len, chunks)), np.int64)
    start = 0
    for chunk in chunks:
        if not len(chunk):  # an empty column may have no buffers
            continue
        texts = chunk.cast(pa.string())
        _, offset_buffer, data = texts.buffers()  # `data` is None if all texts are empty
        first = texts.offset  # a slice shares the buffers of its column
        offsets = np.frombuffer(offset_buffer, np.int32)[first : first + len(chunk) + 1]
        stop = start + len(chunk)
        hash_texts(offsets, data or b"", hashes[start:stop])
        start = stop
    return hashes


def check_dataset_name(name: str) -> str:
    """Return the name of a dataset. Raises: InvalidName."""
    if not _NAME.fullmatch(name) or name.startswith("v-"):
        message = f"{name!r} cannot be a dataset's name: accepted are {_RULE}; 'v-...' is a version id"
        raise InvalidName(message, what="dataset", given=name, accepted=_RULE)
    return name


def check_transaction_name(name: str) -> str:
    """Return the name, which becomes part of store keys, if it is valid. Raises: InvalidName."""
    if not isinstance(name, str) or not _TRANSACTION.fullmatch(name):
        message = (
            f"{name!r} cannot be a transaction's name: accepted are 1 to 200 of A-Z a-z 0-9 . _ - and the first a "
            "letter or digit"
        )
        raise InvalidName(message, what="transaction", given=name)
    return name


def check_words(what: str, words: str) -> str:
    """Return a reason or a person's name. what: its purpose, for messages.

    Raises: InvalidName unless it is UTF-8 text.
    """
    if not is_text(words):
        message = f"the {what} is {words!r}; the log takes UTF-8 text"
        raise InvalidName(message, what=what, given=words, accepted="UTF-8 text")
    return words


def check_stated(what: str, words: str) -> str:
    """Return a required reason or name, as `check_words`. Raises: InvalidName also if it is blank."""
    check_words(what, words)
    if not words.strip():
        message = f"the {what} is {words!r}; it is needed by people who read the log later: pass text"
        raise InvalidName(message, what=what, given=words, accepted="text that is not blank")
    return words


def check_ref_name(name: str) -> str:
    """Return a tag's or alias's name. Raises: InvalidName, also for a reserved name."""
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} cannot be a tag or alias: accepted are {_RULE}",
            what="name",
            given=name,
            accepted=_RULE,
        )
    if name == LATEST or name.isdigit() or name.startswith("v-"):
        raise InvalidName(
            f"{name!r} cannot be a tag or alias: 'latest' is the newest version, digits are version numbers, "
            "'v-...' is a version id; choose another name",
            what="name",
            given=name,
            accepted="a name that is not reserved",
        )
    return name


def check_part_name(name: str) -> str:
    """Return the name of a part. Raises: InvalidSample unless it is lower-case letters, digits or '_'."""
    is_word = name.isascii() and name.replace("_", "").isalnum()
    if not is_word or name != name.lower() or len(name) > 64:
        raise InvalidSample(
            f"part name {name!r} is not accepted; use lower-case letters, digits and '_', e.g. '00042'",
            what="part name",
            given=name,
            accepted="lower-case letters, digits and '_'",
        )
    return name


def card_folder(dataset: str, number: int, version_id: str) -> str:
    return f"cards/{dataset}/{number:06d}-{version_id}"
