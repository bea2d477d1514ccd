"""Convert Arrow values to plain Python values by their declared type, and to field bytes.

Times are built from their integers: `as_py` needs pandas below microseconds, truncates, and asks for time zones.
"""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import InvalidSample, NotSupported

Read = Callable[[Any], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_S = 86_400
_PER_S = {
    "s": 1,
    "ms": 10**3,
    "us": 10**6,
    "ns": 10**9,
}
"""Arrow's unit of time -> units in a second."""


class OutOfRange(ValueError):
    """A valid value that is out of range for its field or metadata column."""

    def __init__(self, what: str, *, fits_text: bool = False) -> None:
        """fits_text: True if a text field could hold the value."""
        super().__init__(what)
        self.fits_text = fits_text


def value_reader(array: pa.Array, *, as_text: bool) -> Callable[[int], Any]:
    """Return a function from row to value, None for null; an array for a list of numbers.

    as_text: return text for times and for values that JSON cannot nest; else times are `datetime`. The function raises
    OutOfRange, ArrowException or UnicodeDecodeError.
    """
    array = plain_array(array)
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _dictionary_reader(array, as_text)
    if is_numbers(kind):
        return lambda at: _numbers(array[at])
    if is_media(kind):  # before other structs, whose bytes JSON does not hold
        return lambda at: array[at].as_py()
    read = _type_reader(kind, as_text)
    if read is None:
        return lambda at: array[at].as_py()

    def value(at: int) -> Any:
        scalar = array[at]
        return read(scalar) if scalar.is_valid else None

    return value


def plain_array(array: pa.Array) -> pa.Array:
    """Return an array without its extension type; string and binary views become plain."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    kind = plain_type(array.type)
    if kind == array.type:
        return array
    return array.cast(kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    return kind


_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
)
_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
)
_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
)


def is_list(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _LISTS)


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_numbers(kind: pa.DataType) -> bool:
    """Return whether the type is a flat list of numbers."""
    return is_list(kind) and is_number(kind.value_type)


def is_bytes(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _BYTES)


def is_text(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _TEXTS)


def is_media(kind: pa.DataType) -> bool:
    """Return whether the type is Hugging Face's media: a struct of bytes and path."""
    if not pa.types.is_struct(kind) or kind.num_fields != 2:
        return False
    types = {kind.field(number).name: kind.field(number).type for number in range(2)}
    if types.keys() != {"bytes", "path"}:
        return False
    return is_bytes(types["bytes"]) and is_text(types["path"])


def inner_dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the dtype of numbers in nested lists; None for flat lists and other types."""
    if not is_list(kind) or is_numbers(kind):
        return None
    while is_list(kind):
        kind = plain_type(kind.value_type)
    if not is_number(kind):
        return None
    dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return dtype


def _dictionary_reader(array: pa.Array, as_text: bool) -> Callable[[int], Any]:
    """Return a reader of a dictionary column, which converts each distinct value once."""
    read = value_reader(array.dictionary, as_text=as_text)
    indices = array.indices
    n_values = len(array.dictionary)
    shared: dict[int, Any] = {}

    def value(at: int) -> Any:
        index = indices[at]
        if not index.is_valid:
            return None
        number = index.as_py()
        if number not in shared:
            # In a damaged page: a negative index would return a value.
            if not 0 <= number < n_values:
                raise pa.ArrowIndexError(f"value {number} of a dictionary of {n_values}")
            shared[number] = read(number)
        return shared[number]

    return value


def _numbers(value: Any) -> Any:
    """Return a list of numbers as an array, or as a list if it has nulls."""
    if not value.is_valid:
        return None
    values = value.values
    if values.null_count:
        return values.to_pylist()
    return values.to_numpy(zero_copy_only=False)


def _type_reader(kind: pa.DataType, as_text: bool) -> Read | None:
    """Return a reader for a type; None if `as_py` returns the value."""
    if pa.types.is_nested(kind):
        if not as_text:
            return None
        return _nested_reader(kind)
    if pa.types.is_timestamp(kind):
        per_s = _PER_S[kind.unit]
        if as_text:
            return lambda scalar: _moment_text(scalar.value, per_s)
        return lambda scalar: _moment(scalar.value, per_s)
    return _text_reader(kind)


def _text_reader(kind: pa.DataType) -> Read | None:
    if pa.types.is_time(kind):
        per_s = _PER_S[kind.unit]
        return lambda scalar: _clock(scalar.value, per_s)
    if pa.types.is_duration(kind):
        per_s = _PER_S[kind.unit]
        return lambda scalar: _duration(scalar.value, per_s)
    if pa.types.is_date32(kind):
        return lambda scalar: _date(scalar.value)
    if pa.types.is_date(kind):
        day_ms = 1000 * _DAY_S
        return lambda scalar: _date(scalar.value // day_ms)
    if pa.types.is_decimal(kind) or pa.types.is_interval(kind):
        return lambda scalar: str(scalar.as_py())
    return None


def _nested_reader(kind: pa.DataType) -> Read | None:
    """Return a reader for lists, structs and maps; None if `as_py` returns JSON values."""
    if pa.types.is_map(kind):
        return _map_reader(kind)
    if pa.types.is_struct(kind):
        return _struct_reader(kind)
    if pa.types.is_union(kind):
        return None
    read = _inner(kind.value_type)
    if read is None:
        return None
    return lambda scalar: [_value(item, read) for item in scalar.values]


def _map_reader(kind: pa.DataType) -> Read | None:
    read_key = _inner(kind.key_type)
    read_item = _inner(kind.item_type)
    if read_key is None and read_item is None:
        return None

    def read(scalar: Any) -> list[list[Any]]:
        pairs = []
        for pair in scalar.values or ():
            key = _value(pair[0], read_key)
            item = _value(pair[1], read_item)
            pairs.append([key, item])
        return pairs

    return read


def _struct_reader(kind: pa.DataType) -> Read | None:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        return _refuse("two members of one name, which JSON does not hold")
    reads = [_inner(field.type) for field in fields]
    if not any(reads):
        return None

    def read(scalar: Any) -> dict[str, Any]:
        members = {}
        for number, name in enumerate(names):
            members[name] = _value(scalar[number], reads[number])
        return members

    return read


def _inner(kind: pa.DataType) -> Read | None:
    if isinstance(kind, pa.BaseExtensionType):
        read = _inner(kind.storage_type)
        return lambda scalar: _value(scalar.value, read)
    if pa.types.is_dictionary(kind):
        read = _inner(kind.value_type)
        if read is None:
            return None
        return lambda scalar: _value(scalar.value, read)
    if is_bytes(kind):
        return _refuse("bytes inside of a list or struct, which JSON does not hold")
    return _type_reader(kind, as_text=True)


def _value(scalar: Any, read: Read | None) -> Any:
    if not scalar.is_valid:
        return None
    if read is None:
        return scalar.as_py()
    return read(scalar)


def _refuse(why: str) -> Read:
    def read(scalar: Any) -> Any:
        raise OutOfRange(why)

    return read


def _second(seconds: int, text: str) -> datetime:
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        raise OutOfRange(f"a time {text} after 1970, outside of the years 1 to 9999") from None


def _moment(value: int, per_s: int) -> datetime:
    seconds, rest = divmod(value, per_s)
    nanos = rest * (10**9 // per_s)
    micros, nanos_below_micros = divmod(nanos, 1000)  # `datetime` has no nanoseconds
    if nanos_below_micros:
        text = _moment_text(value, per_s)
        raise OutOfRange(
            f"the time {text}, finer than the microseconds that metadata hold",
            fits_text=True,
        )
    return _second(seconds, f"{seconds:,} s").replace(microsecond=micros)


def _moment_text(value: int, per_s: int) -> str:
    seconds, rest = divmod(value, per_s)
    second = _second(seconds, f"{seconds:,} s").replace(tzinfo=None)  # the zone follows the fraction
    return f"{second.isoformat()}{_fraction(rest, per_s)}+00:00"


def _clock(value: int, per_s: int) -> str:
    seconds, rest = divmod(value, per_s)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    if not 0 <= hour < 24:
        raise OutOfRange(f"a time of day of {seconds:,} s, and a day has {_DAY_S:,}")
    clock = time(hour, minute, second)
    return f"{clock.isoformat()}{_fraction(rest, per_s)}"


def _duration(value: int, per_s: int) -> str:
    seconds, rest = divmod(value, per_s)
    try:
        return f"{timedelta(seconds=seconds)}{_fraction(rest, per_s)}"
    except OverflowError:
        raise OutOfRange(f"a duration of {seconds:,} s, longer than 999,999,999 days") from None


def _date(days: int) -> str:
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError:
        raise OutOfRange(f"a date {days:,} days after 1970, outside of the years 1 to 9999") from None


def _fraction(rest: int, per_s: int) -> str:
    nanos = rest * (10**9 // per_s)
    if not nanos:
        return ""
    if nanos % 1000:
        return f".{nanos:09d}"
    return f".{nanos // 1000:06d}"


FLAT_WORDS = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
"""Extensions of flat little-endian values."""
# Made once: `json.dumps` makes an encoder for each call with options.
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_value(
    value: Any,
    word: str,
    column: str,
    where: str,
    dtype: np.dtype[Any] | None = None,
) -> bytes:
    """Return a value as field bytes for the extension `word`. dtype: dtype of an array; None keeps the values' dtype.

    Raises: InvalidSample.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return text_bytes(value, column, where)
    if word in FLAT_WORDS or word == "npy":
        return array_bytes(value, word, column, where, dtype)
    return json_bytes(value, column, where)


def json_bytes(
    value: Any,
    column: str,
    where: str,
) -> bytes:
    """Return plain values as JSON. Raises: NotSupported for values that JSON cannot hold; InvalidSample."""
    try:
        text = _JSON.encode(value)
    except (ValueError, TypeError) as error:
        what = f"a value of another kind ({error})"
        if isinstance(error, ValueError):
            what = "a number that is not finite"
        raise NotSupported(
            f"{where}: column {column!r} holds {what}, which JSON does not hold; leave it out (--without {column})"
        ) from error
    return text_bytes(text, column, where)


def text_bytes(
    value: str,
    column: str,
    where: str,
) -> bytes:
    """Return UTF-8. Raises: InvalidSample for a lone surrogate."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidSample(
            f"{where}: column {column!r} is not UTF-8 text ({error}); leave it out (--without {column})"
        ) from error


def array_bytes(
    value: Any,
    word: str,
    column: str,
    where: str,
    dtype: np.dtype[Any] | None = None,
) -> bytes:
    """Return numbers as flat little-endian values or a .npy file. Raises: InvalidSample if they do not fit.

    dtype: dtype of the .npy file; None keeps the values' dtype.
    """
    try:
        plain = np.asarray(value)
    except ValueError:  # from lists of different lengths
        plain = np.array(None)
    if plain.size == 0:  # numpy gives an empty list float64
        is_float = word == "npy" or word[0] == "f"
        plain = plain.astype(np.float64 if is_float else np.int64)
    is_flat = plain.ndim == 1
    if plain.dtype.kind not in "iuf" or (word != "npy" and not is_flat):
        raise InvalidSample(f"{where}: column {column!r} is not a list of numbers, which {word} holds")
    if word == "npy":
        return _npy_bytes(plain, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        array = plain.astype(f"<{word}")
    if word[0] != "f" and not _fits(plain, word):
        raise InvalidSample(f"{where}: numbers of column {column!r} do not fit {word}; name a wider one")
    return array.tobytes()


def _npy_bytes(plain: np.ndarray[Any, Any], dtype: np.dtype[Any] | None) -> bytes:
    if dtype is not None:
        plain = plain.astype(dtype)
    file = BytesIO()
    np.save(file, plain, allow_pickle=False)
    return file.getvalue()


def _fits(plain: np.ndarray[Any, Any], word: str) -> bool:
    """Return whether a type of whole numbers holds all of these."""
    if plain.dtype.kind == "f":
        return False
    if not plain.size:
        return True
    limits = np.iinfo(word)
    return int(plain.min()) >= limits.min and int(plain.max()) <= limits.max
