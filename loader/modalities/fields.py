"""Check field names, recognize values that are already bytes, and import a modality's code on first use."""

import errno
import mmap
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import InvalidField, MissingDependency
from ..lazy_imports import without_collector

Place = Callable[[tuple[int, ...], np.dtype], np.ndarray | None]
"""(shape, dtype) of a result -> C-contiguous, writable memory, or None."""


def nowhere(shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Return None: the `Place` that offers no memory."""


class PlacingDecoder:
    """Base class of decoders that are called with (data, rng, place)."""

    __slots__ = ()


# Types of a stored field's bytes: read from a store, or mapped from a local file.
Buffer = bytes | bytearray | memoryview | mmap.mmap

PACKETS_SUFFIX = ".packets"
"""Ending of the field with the packet table of a video field."""
ROWS_SUFFIX = ".rows"
"""Ending of the field with the row blocks of an array field."""

# `<key>.<field>` is one tar member name of at most 150 bytes: this leaves 69 for the key.
MAX_FIELD_BYTES = 80

# Loading these runs code that their author put into them, so the format never stores them.
PICKLES = frozenset({"pkl", "pickle", "pyd", "dill", "pth", "pt", "joblib"})

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)


def last_word(field: str) -> str:
    """Return the word that selects the decoder: `latent.NPY` -> `npy`."""
    return field.rpartition(".")[2].lower()


def check_field(name: object) -> str:
    """Return `name` if it is a valid field name: words of A-Z a-z 0-9 _ - joined by single dots, at most 80 bytes.

    Pickle formats (pkl, pickle, pyd, dill, pth, pt, joblib) are rejected as last words and never unpickled.
    Raises: InvalidField.
    """
    if not isinstance(name, str):
        raise InvalidField(
            f"a field name is a str such as 'jpg' or 'caption.txt', got {name!r}",
            what="field name",
            given=name,
        )
    if not _NAME.fullmatch(name):
        raise InvalidField(
            f"field name {name!r} is not made of words of [A-Za-z0-9_-] joined by single dots, "
            "such as 'jpg', 'caption.txt' or 'cam_high.mp4'",
            what="field name",
            given=name,
            accepted="words of [A-Za-z0-9_-] joined by single dots",
        )
    if len(name) > MAX_FIELD_BYTES:
        raise InvalidField(
            f"field name {name!r} has {len(name)} bytes; at most {MAX_FIELD_BYTES} leave room for the key "
            "in a tar member name",
            what="field name",
            given=len(name),
            accepted=MAX_FIELD_BYTES,
        )
    if last_word(name) in PICKLES:
        raise InvalidField(
            f"field name {name!r}: .{last_word(name)} is never unpickled (loading it would run code). "
            "Store arrays as .npy, values as .json, anything else under another last word to get its bytes",
            what="field",
            given=name,
        )
    return name


def without_row_blocks(fields: Sequence[str]) -> tuple[str, ...]:
    """Return the fields that are not row blocks of another one, which is a .npy array."""
    blocks = {field + ROWS_SUFFIX for field in fields if last_word(field) == "npy"}
    return tuple(field for field in fields if field not in blocks)


def as_buffer(value: object) -> Buffer | None:
    """Return `value` as flat bytes without a copy, or None. A memoryview with gaps is copied."""
    if isinstance(value, memoryview):
        if not value.c_contiguous:
            return value.tobytes()
        if value.ndim == 1 and value.format == "B":
            return value
        return value.cast("B")
    if isinstance(value, bytes | bytearray | mmap.mmap):
        return value
    return None


EXTRAS = ("image", "audio", "video")
"""Subpackages with third-party dependencies; each is also the name of a pip extra."""


@cache
def load(target: str) -> Any:
    """Import "module:attribute" from this package. Raises: MissingDependency, with the pip command."""
    module, attribute = target.split(":")
    try:
        with without_collector():
            return getattr(import_module(f"{__package__}.{module}"), attribute)
    except ImportError as error:
        extra = module.partition(".")[0]
        if extra not in EXTRAS or (error.name or "").startswith(str(__package__)):
            raise
        raise MissingDependency(
            f"{extra} fields need the package {str(error.name).partition('.')[0]!r}, which is not installed: "
            f"pip install 'penstock-data[{extra}]'"
        ) from error


_TRIAL_BYTES = 64 * 2**20
_ALSO_OF_A_BUG = (TypeError, LookupError, ArithmeticError, RuntimeError, AttributeError, NameError)
_OF_CODE = (TypeError, AttributeError, NameError)
_PACKAGES = frozenset((__name__.partition(".")[0], "assets", "penstock"))
_DECODERS = __package__
# FFmpeg returns other numbers, such as EPERM, for damaged files too.
_FFMPEG_LIMITS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT))


MOST_BYTES = 2**44
"""Bytes: larger than any value. A damaged size makes Arrow allocate more."""
_STATED_SIZE = re.compile(r"size (\d+) failed")


def requested_bytes(error: MemoryError) -> int:
    """Return the bytes that Arrow tried to allocate, 0 for other errors."""
    stated = _STATED_SIZE.search(str(error))
    if stated is None:
        return 0
    return int(stated[1])


def is_machine_fault(error: BaseException) -> bool:
    """Return whether a decoder failed because the machine lacks memory, files, a network, threads or a package.

    A decoder only gets bytes, so every OSError with a number is the machine's; Pillow's about images have none. A unit
    of `penstock.compute.pool` also reads files: its rule is `is_fault`.
    """
    kind = type(error)
    if isinstance(error, MemoryError) and requested_bytes(error) > MOST_BYTES:
        return False
    if kind.__module__.partition(".")[0] == "av":
        if isinstance(error, MemoryError):
            return not _has_memory()
        return isinstance(error, OSError) and error.errno in _FFMPEG_LIMITS
    if isinstance(error, MemoryError | ConnectionError | TimeoutError | ImportError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return True
    if isinstance(error, RuntimeError):
        # CPython and torch raise these two as RuntimeErrors.
        return str(error) == "can't start new thread" or kind.__name__ == "OutOfMemoryError"
    return False


def is_of_code(error: BaseException) -> bool:
    """Return whether a bug in a user's decoder raised the error, which therefore is not a verdict on the bytes.

    penstock's own decoders call libraries that raise TypeError for damaged bytes too. So an error that passed through
    one of them is about the bytes.
    """
    trace = error.__traceback__
    if _imports_a_module(trace):
        return True
    if isinstance(error, SyntaxError):
        # Pillow raises SyntaxError for a broken PNG, without a file name; `ast.literal_eval` names "<unknown>".
        return error.filename is not None and not error.filename.startswith("<")
    if not isinstance(error, _OF_CODE) or isinstance(error, ValueError):
        return False
    return not any(name == _DECODERS or name.startswith(f"{_DECODERS}.") for name in _modules(trace))


def _imports_a_module(trace: TracebackType | None) -> bool:
    # An error of an import has any type: a missing library is an OSError without errno, numpy's ABI a ValueError.
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "<module>":
            return True
        trace = trace.tb_next
    return False


def _modules(trace: TracebackType | None) -> Iterator[str]:
    while trace is not None:
        yield str(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next


def is_ours(error: BaseException) -> bool:
    """Return whether an error is this project's bug: libraries also raise TypeError for damaged bytes."""
    if not isinstance(error, _ALSO_OF_A_BUG):
        return False
    *_, innermost = "", *_modules(error.__traceback__)
    return innermost.partition(".")[0] in _PACKAGES


def _has_memory() -> bool:
    try:
        bytearray(_TRIAL_BYTES)
    except MemoryError:
        return False
    return True
