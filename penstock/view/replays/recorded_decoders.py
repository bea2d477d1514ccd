"""Rebuild the built-in decoders of a training from the facts in its run log.

The facts of `loader.image(size=(64, 64))` are its class and its `repr`. Only classes of `_CLASSES` are built, and only
from literals, because every writer of the root can write a run log. Functions of the user need the recipe.
"""

import ast
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from loader.errors import InvalidRuntime
from loader.modalities import DECODERS, Decoder, decode_bytes, find_decoder
from loader.modalities.audio.request import AudioDecoder
from loader.modalities.fields import last_word, load
from loader.modalities.image.random_crop import RandomResizedCrop
from loader.modalities.image.request import ImageDecoder
from loader.modalities.video.request import VideoDecoder
from loader.run.recipe.decode import ByBucket
from loader.run.trail.trail import MAX_OPTIONS_CHARS, CodeFacts, code_facts

RecordedDecoders = tuple[tuple[str, str, CodeFacts], ...]
"""(field, bucket or "", facts) of each decoder of a training."""

_CLASSES = {
    code_facts(one).name: one for one in (AudioDecoder, ImageDecoder, RandomResizedCrop, VideoDecoder)
}
_PACKAGE = "loader.modalities."
MOST_CLIP_BYTES = 2**30
"""Largest clip that a viewer decodes by a run log's word: a training on a large node may take more."""
_MOST_STORED_FRAMES = 64
"""Most frames of a clip in its stored size, which is not known beforehand."""


def comparable_decoders(decoders: Mapping[str, Mapping[str, CodeFacts]]) -> RecordedDecoders:
    """Return a start record's decoders in a form that can be compared and hashed."""
    rows = list[tuple[str, str, CodeFacts]]()
    for field, by_bucket in decoders.items():
        for bucket, facts in by_bucket.items():
            rows.append((field, bucket, facts))
    return tuple(sorted(rows, key=_field_and_bucket))


def _field_and_bucket(row: tuple[str, str, CodeFacts]) -> tuple[str, str]:
    field, bucket, _ = row
    return field, bucket


def fields_of_user_code(decoders: RecordedDecoders) -> list[str]:
    """Return the fields whose decoders cannot be rebuilt, sorted."""
    fields = set[str]()
    for field, _, facts in decoders:
        if rebuilt_decoder(field, facts) is None:
            fields.add(field)
    return sorted(fields)


def rebuilt_decode(
    decoders: RecordedDecoders, bounded: Callable[[Decoder], Decoder]
) -> dict[str, Decoder | ByBucket]:
    """Return field -> decoder for the Loader's `decode`. Fields with the decoder of their extension are left out.

    bounded: called with each audio decoder.
    """
    by_field = dict[str, dict[str, Decoder | None]]()
    for field, bucket, facts in decoders:
        of_field = by_field.setdefault(field, {})
        of_field[bucket] = rebuilt_decoder(field, facts)
    decode = dict[str, Decoder | ByBucket]()
    for field, by_bucket in by_field.items():
        rebuilt = {bucket: decoder for bucket, decoder in by_bucket.items() if decoder is not None}
        if len(rebuilt) < len(by_bucket):
            continue  # the user's code
        default = _default(field)
        if all(decoder is default for decoder in rebuilt.values()):
            continue
        target = DECODERS.get(last_word(field), "")
        if target.startswith("audio."):
            rebuilt = {bucket: bounded(decoder) for bucket, decoder in rebuilt.items()}
        decode[field] = ByBucket(rebuilt)
        if "" in rebuilt:  # one for all buckets
            decode[field] = rebuilt[""]
    return decode


def rebuilt_decoder(field: str, facts: CodeFacts) -> Decoder | None:
    """Return a built-in decoder with the recorded options; None for user code, and beyond the viewer's limits."""
    default = _default(field)
    if default is not None:
        own = code_facts(default)
        if own.name == facts.name and own.options == facts.options:
            return default
    class_ = _CLASSES.get(facts.name)
    if class_ is not None:
        return _with_options(class_, facts.options)
    if facts.options:
        return None
    if facts.name == code_facts(decode_bytes).name:
        return decode_bytes
    if not facts.name.startswith(_PACKAGE):
        return None
    target = facts.name.removeprefix(_PACKAGE)
    if target not in DECODERS.values():
        return None
    decoder: Decoder = load(target)
    return decoder


def _default(field: str) -> Decoder | None:
    try:
        return find_decoder(field)
    except (InvalidRuntime, ImportError, ValueError):
        return None


def _with_options(class_: type[Any], options: str) -> Decoder | None:
    if len(options) > MAX_OPTIONS_CHARS:
        return None
    try:
        named = _keywords(class_, options)
        decoder: Decoder = class_(**named)
    except (ValueError, TypeError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        return None  # of another release, or cut at `MAX_OPTIONS_CHARS`
    if isinstance(decoder, VideoDecoder) and not _is_small(decoder):
        return None
    return decoder


def _keywords(class_: type[Any], options: str) -> dict[str, Any]:
    """Return the arguments in a `repr` of a class. Raises: ValueError; SyntaxError."""
    call = ast.parse(options, mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError(f"{options!r:.100} is not a call")
    if call.args or ast.unparse(call.func) != class_.__name__:
        raise ValueError(f"{options!r:.100} is not a call of {class_.__name__} with named options")
    named = dict[str, Any]()
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError(f"{options!r:.100} has unnamed options")
        named[keyword.arg] = _literal(keyword.value)
    return named


def _literal(value: ast.expr) -> Any:
    """Return a literal, or a Fraction of whole numbers. Raises: ValueError."""
    if isinstance(value, ast.Tuple):
        return tuple(_literal(element) for element in value.elts)
    if not isinstance(value, ast.Call):
        return ast.literal_eval(value)
    if ast.unparse(value.func) != "Fraction" or value.keywords:
        raise ValueError(f"{ast.unparse(value)!r:.100} is not a literal")
    numbers = [ast.literal_eval(argument) for argument in value.args]
    if any(type(number) is not int for number in numbers):
        # `Fraction("1e999999999")` would take a GB, and hours.
        raise ValueError(f"{ast.unparse(value)!r:.100} is not a fraction of whole numbers")
    return Fraction(*numbers)


def _is_small(decoder: VideoDecoder) -> bool:
    frames = decoder.frames
    if isinstance(decoder.at, tuple):
        frames = len(decoder.at)
    if decoder.size is None:
        return frames <= _MOST_STORED_FRAMES
    height, width = decoder.size
    pixel_nbytes = 6 if decoder.bits == 16 else 3
    nbytes = pixel_nbytes * frames * height * width
    return nbytes <= MOST_CLIP_BYTES
