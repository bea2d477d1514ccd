"""Field names, values that already are bytes, and a modality's code, imported at first need."""

import mmap
import re
from functools import cache
from importlib import import_module
from typing import Any

from ..errors import InvalidField, MissingDependency
from ..lazy_imports import without_collector

# What a stored field's bytes may come as: read from a store, or mapped from a local file.
Buffer = bytes | bytearray | memoryview | mmap.mmap

# `<key>.<field>` is one tar member name of at most 150 bytes: this leaves 69 for the key.
MAX_FIELD_BYTES = 80

# Loading these runs whatever code their author wrote into them, so the format never holds them.
PICKLES = frozenset({"pkl", "pickle", "pyd", "dill", "pth", "pt", "joblib"})

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)


def last_word(field: str) -> str:
    """Return the word that picks the decoder: `latent.NPY` -> `npy`."""
    return field.rpartition(".")[2].lower()


def check_field(name: object) -> str:
    """Return `name`, if it can be a field's: words of A-Z a-z 0-9 _ - joined by single dots, at most 80 bytes.

    Pickle formats (pkl, pickle, pyd, dill, pth, pt, joblib) are refused as last words: they are never unpickled.
    Raises: InvalidField.
    """
    if not isinstance(name, str):
        raise InvalidField(f"a field name is a str such as 'jpg' or 'caption.txt', got {name!r}")
    if not _NAME.fullmatch(name):
        raise InvalidField(
            f"field name {name!r} is not made of words of [A-Za-z0-9_-] joined by single dots, "
            "such as 'jpg', 'caption.txt' or 'cam_high.mp4'"
        )
    if len(name) > MAX_FIELD_BYTES:
        raise InvalidField(
            f"field name {name!r} has {len(name)} bytes; at most {MAX_FIELD_BYTES} leave room for the key "
            "in a tar member name"
        )
    if last_word(name) in PICKLES:
        raise InvalidField(
            f"field name {name!r}: .{last_word(name)} is never unpickled (loading it would run code). "
            "Store arrays as .npy, values as .json, anything else under another last word to get its bytes"
        )
    return name


def as_buffer(value: object) -> Buffer | None:
    """Return `value` as flat bytes without a copy, or None. A memoryview with gaps is copied."""
    if isinstance(value, memoryview):
        if not value.c_contiguous:
            return value.tobytes()
        return value if value.ndim == 1 and value.format == "B" else value.cast("B")
    return value if isinstance(value, bytes | bytearray | mmap.mmap) else None


EXTRAS = ("image", "audio", "video")
"""Packages here that import others; each pip extra has its name."""


@cache
def load(target: str) -> Any:
    """Return the attribute that "module:attribute" names here. Raises: MissingDependency, with the pip line."""
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
