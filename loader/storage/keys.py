"""What a key may be: one rule for every backend, so that a dataset can move between disks and clouds."""

import secrets
from functools import lru_cache

from ..errors import InvalidStore

TEMPORARY = (
    ".tmp-"  # how the names begin of files that a local store is still writing; never listed, never a key
)
UNFINISHED = r"\.tmp-[0-9a-f]{16}"
"""A regular expression of these names, as `unfinished_name` gives them."""
MAX_KEY_BYTES = 1024  # S3 and GCS; Azure takes 1024 characters

_ACCEPTED = (
    "a key is a relative path of '/'-separated UTF-8 segments, such as 'data/part-00042.tar', "
    f"of at most {MAX_KEY_BYTES} bytes"
)


def is_text(given: object) -> bool:
    """Whether it is text that UTF-8 can hold: a str without half characters (surrogates)."""
    try:
        return isinstance(given, str) and given.encode() is not None
    except UnicodeEncodeError:
        return False


def unfinished_name() -> str:
    """What a file is called until it is written."""
    return f"{TEMPORARY}{secrets.token_hex(8)}"


@lru_cache(maxsize=8192)
def check_key(key: str) -> str:
    """The key itself, when every backend can hold it. Raises: InvalidStore (nothing is cached then)."""
    if not isinstance(key, str):
        raise InvalidStore(f"key {key!r} is a {type(key).__name__}; {_ACCEPTED}")
    if not key:
        raise InvalidStore(f"the key is empty; {_ACCEPTED}")
    for segment in key.split("/"):
        if segment in ("", ".", ".."):
            raise InvalidStore(
                f"key {key!r} has the segment {segment!r}, which no store accepts; {_ACCEPTED}"
            )
    if TEMPORARY in key and any(segment.startswith(TEMPORARY) for segment in key.split("/")):
        raise InvalidStore(
            f"key {key!r}: names beginning with {TEMPORARY!r} are unfinished files; choose another name"
        )
    _check_text(key)
    return key


def check_prefix(prefix: str) -> str:
    """A listing's prefix: the beginning of a key, possibly empty. Raises: InvalidStore."""
    if not isinstance(prefix, str) or prefix.startswith("/"):
        raise InvalidStore(f"prefix {prefix!r} cannot begin a key; {_ACCEPTED}")
    if any(segment in ("", ".", "..") for segment in prefix.split("/")[:-1]):
        raise InvalidStore(f"prefix {prefix!r} cannot begin a key; {_ACCEPTED}")
    _check_text(prefix)
    return prefix


def check_span(key: str, offset: int, nbytes: int) -> None:
    """Raises: InvalidStore when the range is not one that any object could have."""
    if offset < 0 or nbytes < 0:
        raise InvalidStore(f"{key}: range [{offset}, +{nbytes}) is negative; offset and nbytes are 0 or more")


def _check_text(text: str) -> None:
    if not text.isprintable() and any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise InvalidStore(f"key {text!r} holds a control character; {_ACCEPTED}")
    try:
        nbytes = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidStore(f"key {text!r} is not valid UTF-8; {_ACCEPTED}") from None
    if nbytes > MAX_KEY_BYTES:
        raise InvalidStore(f"key {text!r} is {nbytes} bytes long; {_ACCEPTED}")
