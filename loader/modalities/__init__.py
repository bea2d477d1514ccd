"""The meaning of a field's bytes: decoders for the loader, encoders for the writer.

The last word of the field's name, in any letter case, selects the decoder (`jpg`, `caption.txt`, `latent.npy`). A
decoder is a callable `(data, rng) -> object`, called with the field's bytes and the sample's random generator or None.
It is picklable and thread-safe, and raises `DecodeFailed` for bytes that it cannot decode.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction
from typing import Any, Literal, NoReturn

import numpy as np

from ..errors import InvalidField
from .fields import Buffer, PlacingDecoder, as_buffer, check_field, last_word, load

__all__ = [
    "Buffer",
    "Decoder",
    "check_field",
    "decoder_extensions",
    "draws",
    "encode",
    "find_decoder",
    "placing",
]

Decoder = Callable[[Buffer, "np.random.Generator | None"], object]

# last word of the field -> "module:attribute" in this package. Modules are imported on first use.
DECODERS = {
    "jpg": "image.decode:decode",
    "jpeg": "image.decode:decode",
    "png": "image.decode:decode",
    "webp": "image.decode:decode",
    "img": "image.decode:decode",
    "mp4": "video.request:DEFAULT",
    "mov": "video.request:DEFAULT",
    "webm": "video.request:DEFAULT",
    "mkv": "video.request:DEFAULT",
    "wav": "audio.decode:decode",
    "flac": "audio.decode:decode",
    "mp3": "audio.decode:decode",
    "ogg": "audio.decode:decode",
    "opus": "audio.decode:decode",
    "m4a": "audio.decode:decode",
    "npy": "array:decode",
    **{
        word: f"array:decode_{word}"
        for word in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
    },
    "txt": "text:decode_txt",
    "json": "text:decode_json",
    "jsonl": "text:decode_jsonl",
    "cls": "text:decode_cls",
}

_EIGHT_BITS = {
    "image.decode:decode": "image.decode:decode_8",
    "video.request:DEFAULT": "video.request:DEFAULT_8",
}

# Decoders of fields that need another field of the sample.
WITH_TABLES = {"run": "video.request:RUN"}

# last word of the field -> "module:attribute" of `encode(field, value) -> bytes`, and accepted values.
ENCODERS = {
    "npy": ("array:encode", "numpy.ndarray (no object dtype)"),
    "txt": ("text:encode_txt", "str"),
    "json": ("text:encode_json", "what JSON holds (dict, list, str, int, finite float, bool, None)"),
    "jsonl": ("text:encode_jsonl", "a list of what JSON holds"),
    "cls": ("text:encode_cls", "int within int64"),
}


def decoder_extensions() -> tuple[str, ...]:
    """Return the last words that have a decoder, sorted. Fields with other words decode to bytes."""
    return tuple(sorted(DECODERS))


def find_decoder(field: str, bits: Literal[8] | None = None) -> Decoder:
    """Return the decoder for a field, selected by the last word of its name.

    Decoders return, by word:

    - image words: uint8 [H, W, C]; video words, and run: uint8 [T, H, W, 3]; audio words: float32 [channels, samples].
      Gray images and videos of more than 8 bits stay as stored, uint16 [H, W, 1] and [T, H, W, 1], unless bits=8;
    - npy: an array; u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8: a flat one, [n];
    - txt: str; json: an object; jsonl: a list; cls: int;
    - other words (`x.packets`, `x.bin`): bytes.

    Raises: InvalidField if the format rejects the name; MissingDependency if the decoding package is missing.
    """
    check_field(field)
    word = last_word(field)
    target = DECODERS.get(word) or WITH_TABLES.get(word)
    if target is None:
        return decode_bytes
    if bits == 8:
        target = _EIGHT_BITS.get(target, target)
    decoder: Decoder = load(target)
    return decoder


def draws(decoder: Decoder) -> bool:
    # (creating a generator costs as much as decoding a small field)
    return not (isfunction(decoder) and decoder.__module__.startswith(__name__))


def placing(decoder: Decoder) -> bool:
    if isfunction(decoder):
        return decoder.__code__.co_argcount == 3 and decoder.__module__.startswith(__name__)
    return isinstance(decoder, PlacingDecoder)


def encode(field: str, value: object) -> Buffer:
    """Return the bytes to store for `value` in `field`, which `find_decoder(field)` reads back.

    bytes, bytearray, memoryview and mmap are returned without a copy. Equal values give equal bytes.

    Raises: InvalidField, which names the field, its type and the accepted types.
    """
    check_field(field)
    buffer = as_buffer(value)
    if buffer is not None:
        return buffer
    entry = ENCODERS.get(last_word(field))
    if entry is None:
        _refuse(field, value, "bytes, bytearray, memoryview or mmap")
    encoder: Callable[[str, Any], bytes] = load(entry[0])
    return encoder(field, value)


def decode_bytes(data: Buffer, rng: np.random.Generator | None = None) -> bytes:
    return bytes(data)


def _refuse(field: str, value: object, accepted: str) -> NoReturn:
    kind = type(value)
    raise InvalidField(
        f"field {field!r} cannot hold a {kind.__module__}.{kind.__qualname__}: it takes {accepted}. "
        "Encode the value to bytes first, or choose a field name whose last word takes it: "
        + "; ".join(f".{word}: {types}" for word, (_, types) in ENCODERS.items()),
        what=field,
        given=f"{kind.__module__}.{kind.__qualname__}",
        accepted=accepted,
    )
