"""Rebuild the built-in decoders of a training from the facts in its run log.

The facts of `loader.image(size=(64, 64))` are its class and its `repr`. Only classes of `_CLASSES` are built, and only
from literals, because every writer of the root can write a run log. Functions of the user need the recipe.
"""

import ast
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from loader.errors import InvalidRuntime
from loader.modalities import DECODERS, Decoder, decode_bytes, decoder_for
from loader.modalities.audio.request import AudioDecoder
from loader.modalities.fields import last_word, load
from loader.modalities.image.random_crop import RandomResizedCrop
from loader.modalities.image.request import ImageDecoder
from loader.modalities.video.request import VideoDecoder
from loader.run.recipe.decode import ByBucket
from loader.run.trail.trail import MAX_OPTIONS_CHARS, CodeFacts, facts_of

RecordedDecoders = tuple[tuple[str, str, CodeFacts], ...]
"""(field, bucket or "", facts) of each decoder of a training."""

_CLASSES = {facts_of(one).name: one for one in (AudioDecoder, ImageDecoder, RandomResizedCrop, VideoDecoder)}
_PACKAGE = "loader.modalities."
MOST_CLIP_BYTES = 2**30
"""Largest clip that a viewer decodes by a run log's word: a training on a large node may take more."""
_MOST_STORED_FRAMES = 64
"""Most frames of a clip in its stored size, which is not known beforehand."""


def recorded_decoders(decoders: Mapping[str, Mapping[str, CodeFacts]]) -> RecordedDecoders:
    """Return a start record's decoders in a form that can be compared and hashed."""
    rows = list[tuple[str, str, CodeFacts]]()
    for field, by_bucket in sorted(decoders.items()):
        rows += [(field, bucket, facts) for bucket, facts in sorted(by_bucket.items())]
    return tuple(rows)


def fields_of_user_code(decoders: RecordedDecoders) -> list[str]:
    """Return the fields whose decoders cannot be rebuilt, sorted."""
    return sorted({field for field, _, facts in decoders if rebuilt_decoder(field, facts) is None})


def rebuilt_decode(
    decoders: RecordedDecoders, bounded: Callable[[Decoder], Decoder]
) -> dict[str, Decoder | ByBucket]:
    """Return field -> decoder for the Loader's `decode`. Fields with the decoder of their extension are left out.

    bounded: called with each audio decoder.
    """
    by_field = dict[str, dict[str, Decoder | None]]()
    for field, bucket, facts in decoders:
        by_field.setdefault(field, {})[bucket] = rebuilt_decoder(field, facts)
    decode = dict[str, Decoder | ByBucket]()
    for field, by_bucket in by_field.items():
        rebuilt = {bucket: decoder for bucket, decoder in by_bucket.items() if decoder is not None}
        default = _default(field)
        if len(rebuilt) < len(by_bucket) or all(decoder is default for decoder in rebuilt.values()):
            continue
        if DECODERS.get(last_word(field), "").startswith("audio."):
            rebuilt = {bucket: bounded(decoder) for bucket, decoder in rebuilt.items()}
        decode[field] = rebuilt[""] if "" in rebuilt else ByBucket(rebuilt)
    return decode


def rebuilt_decoder(field: str, facts: CodeFacts) -> Decoder | None:
    """Return a built-in decoder with the recorded options; None for user code, and beyond the viewer's limits."""
    default = _default(field)
    if default is not None:
        own = facts_of(default)
        if (own.name, own.options) == (facts.name, facts.options):
            return default
    if facts.name in _CLASSES:
        return _with_options(_CLASSES[facts.name], facts.options)
    if facts.options:
        return None
    if facts.name == facts_of(decode_bytes).name:
        return decode_bytes
    target = facts.name.removeprefix(_PACKAGE)
    if facts.name.startswith(_PACKAGE) and target in DECODERS.values():
        decoder: Decoder = load(target)
        return decoder
    return None


def _default(field: str) -> Decoder | None:
    try:
        return decoder_for(field)
    except (InvalidRuntime, ImportError, ValueError):
        return None


def _with_options(class_: type[Any], options: str) -> Decoder | None:
    if len(options) > MAX_OPTIONS_CHARS:
        return None
    try:
        call = ast.parse(options, mode="eval").body
        if not isinstance(call, ast.Call) or call.args or ast.unparse(call.func) != class_.__name__:
            return None
        named = {str(one.arg): _literal(one.value) for one in call.keywords}
        decoder: Decoder = class_(**named)
    except (ValueError, TypeError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        return None  # of another release, or cut at `MAX_OPTIONS_CHARS`
    if isinstance(decoder, VideoDecoder) and not _is_small(decoder):
        return None
    return decoder


def _literal(value: ast.expr) -> Any:
    """Return a literal, or a Fraction of two. Raises: ValueError."""
    if isinstance(value, ast.Tuple):
        return tuple(_literal(one) for one in value.elts)
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "Fraction" and not value.keywords:
        return Fraction(*[ast.literal_eval(one) for one in value.args])
    return ast.literal_eval(value)


def _is_small(decoder: VideoDecoder) -> bool:
    frames = len(decoder.at) if isinstance(decoder.at, tuple) else decoder.frames
    if decoder.size is None:
        return frames <= _MOST_STORED_FRAMES
    height, width = decoder.size
    return 3 * frames * height * width <= MOST_CLIP_BYTES
