"""Each field's decoder, by bucket if they differ, and a sample's path through decoders and transform."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...dataset.shards.address import Described
from ...errors import (
    DecodeFailed,
    InvalidPlan,
    InvalidRuntime,
    InvalidSignature,
    PenstockError,
    TransformFailed,
)
from ...modalities import Decoder, draws, find_decoder, placing
from ...modalities.array import is_array
from ...modalities.fields import Place, is_machine_fault, is_of_code, load, nowhere
from ...modalities.video.request import Choice, VideoDecoder, choose
from ...modalities.video.timeline import Timeline
from ...native import copy_bytes
from .video_clips import BareClip, WholeClip
from .video_groups import Group, field_group, times_field

Called = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ByBucket:
    of: Mapping[str, Called] | Called
    """Label -> decoder or transform, or a function from label to either."""

    def chosen(self, label: str, where: str) -> Called:
        if isinstance(self.of, Mapping):
            if label not in self.of:
                raise InvalidRuntime(
                    f"{where} = loader.by_bucket(...) has nothing for the plan's bucket {label!r}, but for "
                    f"{', '.join(map(repr, self.of))}; name every bucket, or pass a function of the label",
                    what=where,
                    given=label,
                    accepted=list(self.of),
                )
            return self.of[label]
        try:
            choice: object = self.of(label)
        except InvalidRuntime as error:
            error.add_note(f"while making {where} of bucket {label!r}")
            raise
        if not callable(choice):
            raise InvalidRuntime(
                f"{where} = loader.by_bucket({self.of!r}): of bucket {label!r} it makes {choice!r}, which cannot be "
                "called",
                what=where,
                where=f"bucket {label!r}",
                given=choice,
                accepted="a function",
            )
        return choice


def by_bucket(of: Mapping[str, Called] | Called) -> ByBucket:
    """Return a decoder or a transform for each bucket of a plan with `bucket_by`.

        Loader(plan, decode={"jpg": loader.by_bucket(lambda label: loader.image(size=label, crop="random"))})
        Loader(plan, transform=loader.by_bucket({"short": pad_to_512, "long": pad_to_4096}))

    of: label -> decoder (or transform), for every bucket of the plan, or a function from label to either. The function
    is called once per bucket when the Loader is created.

    Raises: InvalidRuntime.
    """
    if isinstance(of, Mapping):
        called = list(of.values())
    else:
        called = [of]
    if not called or not all(map(callable, called)):
        raise InvalidRuntime(
            f"by_bucket({of!r}): a dict of bucket -> decoder or transform is needed, or a function of a bucket's label",
            what="by_bucket",
            given=of,
            accepted="a dict of bucket -> function, or a function of a label",
        )
    return ByBucket(of)


def of_buckets(value: object, labels: list[str], where: str) -> object:
    """Return the value; for a `by_bucket(...)`, call its function for each label."""
    if not isinstance(value, ByBucket):
        return value
    if not labels:
        raise InvalidRuntime(
            f"{where} = loader.by_bucket(...) with a plan that has no buckets; plan with bucket_by=, or pass the one "
            "that is to be called",
            what=where,
            given="by_bucket",
            accepted="a plan with bucket_by=",
        )
    return ByBucket({label: value.chosen(label, where) for label in labels})


def of_bucket(value: Any, label: str | None, where: str) -> Any:
    if isinstance(value, ByBucket) and label is not None:
        return value.chosen(label, where)
    return value


class ReadyValue:
    """A field's value that no decoder gets, such as a window's rows."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class SequenceLayout:
    """The transform of `loader.laid_out`. A Loader with only this transform applies it to whole batches."""

    def __init__(self, field: str) -> None:
        self.field = field

    def __call__(self, sample: Mapping[str, Any], rng: object = None) -> dict[str, Any]:
        """Return the sample without `starts.npy`, and with the fields of its layout. Raises: InvalidSample."""
        from .sequence_layout import split_sequence  # only for stored sequences

        return split_sequence(sample, self.field)

    def __repr__(self) -> str:
        return f"laid_out({self.field!r})"


def laid_out(field: str) -> SequenceLayout:
    """Return a transform that lays out stored sequences, which `penstock pack` makes of documents.

        view = root.open("packed@1").select("tokens.npy", "starts.npy")
        Loader(plan, transform=loader.laid_out("tokens.npy"))

    It takes `starts.npy` out of a sample and adds `<field>.position_ids`, `<field>.segment_ids` and
    `<field>.loss_mask`, as a packed plan does (`loader.pack`). A Loader applies it to a whole batch at once. In a
    transform of your own, call it with the sample.

    field: the field of the tokens.

    Raises: InvalidPlan. The transform raises InvalidSample if `starts.npy` does not fit the tokens.
    """
    if not isinstance(field, str) or not is_array(field):
        raise InvalidPlan(
            f"laid_out({field!r}): the name of the tokens' field is needed, such as 'tokens.npy'",
            what="field",
            given=field,
            accepted="the name of the tokens' field",
        )
    return SequenceLayout(field)


Transform = Callable[[dict[str, Any], "np.random.Generator"], Mapping[str, Any]]
Decode = bool | Mapping[str, Decoder | ByBucket]
FieldPlace = Callable[[str], Place]
FieldRng = Callable[[str], "np.random.Generator"]


def decoders(fields: Sequence[str], decode: Decode, bucket: str | None = None) -> dict[str, Decoder]:
    """Return field -> decoder.

    decode: True chooses by the field's extension, False keeps bytes, a mapping overrides fields. bucket: the samples'
    bucket, if decoders differ. Raises: InvalidRuntime for a field that the view does not select.
    """
    if decode is False:
        return {}
    chosen = {field: find_decoder(field) for field in fields}
    if decode is True:
        return chosen
    if not isinstance(decode, Mapping) or not all(
        callable(value) or isinstance(value, ByBucket) for value in decode.values()
    ):
        raise InvalidRuntime(
            f"decode = {decode!r}; accepted: True, False, or a dict of field -> decoder such as "
            "{'mp4': loader.video(frames=16, size=(224, 224))}",
            what="decode",
            given=decode,
            accepted="True, False, or a dict of field -> decoder",
        )
    if unknown := sorted(set(decode) - set(fields)):
        raise InvalidRuntime(
            f"decode names {unknown}, which the plan's views do not select; they select {list(fields)} (items of a "
            "dataset are not decoded: change them in transform=)",
            what="decode",
            given=unknown,
            accepted=list(fields),
        )
    own = {field: of_bucket(value, bucket, f"decode[{field!r}]") for field, value in decode.items()}
    return {**chosen, **own}


Payload = dict[str, bytes | memoryview | BareClip | WholeClip | ReadyValue]
"""Field -> data to decode. A memoryview shares memory: see `own_data`."""


def own_data(
    data: bytes | memoryview | BareClip | WholeClip | ReadyValue,
) -> bytes | BareClip | WholeClip | ReadyValue:
    """Return data that a decoder may keep."""
    if isinstance(data, memoryview):
        return copy_bytes(data)
    return data


def decode_sample(
    data: Mapping[str, bytes | BareClip | WholeClip | ReadyValue],
    address: Described,
    by_field: Mapping[str, Decoder],
    rng_of: FieldRng,
    place_of: FieldPlace = lambda _: nowhere,
) -> dict[str, Any]:
    """Return field -> decoded value.

    rng_of: field -> generator, called if the decoder draws.
    place_of: field -> memory for the value, called if the decoder accepts it (`modalities.placing`).

    Raises: DecodeFailed with the sample's full address; errors unrelated to the bytes (`failure`).
    """
    out: dict[str, Any] = {}
    for field, value in data.items():
        decoder = by_field.get(field)
        try:
            if field in out:
                continue  # decoded with its group
            if isinstance(value, ReadyValue):
                out[field] = value.value
            elif isinstance(value, BareClip | WholeClip):
                out[field] = value.decoded(place_of(field))
                _add_times(out, field, decoder, value.choice)
            elif isinstance(decoder, VideoDecoder):
                out.update(_decode_videos(field_group(field, by_field, data), data, by_field, rng_of))
            elif decoder is None:
                out[field] = value
            elif placing(decoder):
                rng = None
                if draws(decoder):
                    rng = rng_of(field)
                out[field] = decoder(value, rng, place_of(field))  # type: ignore[call-arg]
            else:
                out[field] = decoder(value, rng_of(field) if draws(decoder) else None)
        except Exception as error:  # noqa: BLE001 - from the user's decoder
            reported = failure(error, decoder, address, field)
            try:
                if reported is error:
                    raise
                raise reported from error
            finally:
                del reported  # otherwise error and frame hold each other, and the sample
    if out.keys() == data.keys():
        if len(out) == 1:
            return out
        return {name: out[name] for name in data}
    names = (name for field in data for name in (field, times_field(field)))
    return {name: out[name] for name in names if name in out}


def failure(error: Exception, decoder: Decoder | None, address: Described, field: str) -> Exception:
    """Return DecodeFailed with the sample's address, for a decoder's error about the bytes.

    An error unrelated to the bytes (`is_machine_fault`, `is_of_code`) is returned itself, with a note that names
    decoder and address.
    """
    at = address.describe(field)
    if isinstance(error, DecodeFailed):
        return error.with_message(f"{at}: {error}", where=at)
    if isinstance(error, PenstockError) or is_machine_fault(error):
        error.add_note(f"while decoding {at} with {_name(decoder)}")
        return error
    if is_of_code(error):
        error.add_note(
            f"while decoding {at} with {_name(decoder)}: {type(error).__name__} is an error of code, so no other "
            "sample is substituted. Correct the decoder; if the bytes are at fault, let it raise ValueError"
        )
        return error
    message = f"{at}: decoder {decoder!r} raised {type(error).__name__}: {error}"
    return DecodeFailed(message, what=field, where=at, given=type(error).__name__)


def _decode_videos(
    group: Group, data: Mapping[str, Any], by_field: Mapping[str, Decoder], rng_of: FieldRng
) -> dict[str, Any]:
    ours = {field: decoder for field in group if isinstance(decoder := by_field[field], VideoDecoder)}
    rngs = {field: rng_of(field) for field in group}
    chosen: dict[str, Choice] = {}

    def note_choices(timelines: Mapping[str, Timeline]) -> Mapping[str, Choice]:
        chosen.update(choose(ours, timelines, rngs))
        return chosen

    out: dict[str, Any] = load("video.decode:read_whole")(
        {field: data[field] for field in group}, note_choices
    )
    for field, choice in chosen.items():
        _add_times(out, field, by_field[field], choice)
    return out


def _add_times(out: dict[str, Any], field: str, decoder: Decoder | None, choice: Choice) -> None:
    if isinstance(decoder, VideoDecoder) and decoder.times:
        out[times_field(field)] = np.array(choice.times_s, np.float64)


def apply_transform(
    transform: Transform, sample: dict[str, Any], address: Described, rng: np.random.Generator
) -> dict[str, Any]:
    """Return the transform's result as a dict. Raises: TransformFailed if it raises or does not return a mapping."""
    try:
        result = transform(sample, rng)
    except Exception as error:
        raise TransformFailed(
            f"transform {_name(transform)} raised {type(error).__name__} on {address.describe()}: {error}",
            what=_name(transform),
            where=address.describe(),
            given=type(error).__name__,
        ) from error
    if not (type(result) is dict or isinstance(result, Mapping)) or not result:
        raise TransformFailed(
            f"transform {_name(transform)} returned {result!r} for {address.describe()}; it must return a dict of "
            "field -> value. To leave samples out, use a predicate: version.where(...)",
            what=_name(transform),
            where=address.describe(),
            given=result,
            accepted="a dict of field -> value",
        )
    return dict(result)


def check_signature(value: object, arguments: tuple[str, ...], where: str) -> None:
    """Check that a decoder or transform, or each bucket's, accepts these positional arguments.

    Functions of C, whose signature is unknown, pass. Raises: InvalidSignature.
    """
    if isinstance(value, ByBucket):
        if isinstance(value.of, Mapping):
            for label, function in value.of.items():
                check_signature(function, arguments, f"{where} of bucket {label!r}")
        return
    if not callable(value) or placing(value):
        return
    try:
        # A decorator's own signature counts: `functools.wraps` would show the signature of the wrapped function.
        signature = inspect.signature(value, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InvalidSignature(
            f"{where} = {_name(value)}{signature} cannot be called with ({', '.join(arguments)}): {error}. penstock "
            f"calls it with these {len(arguments)} positional arguments",
            what=where,
            given=str(signature),
            accepted=list(arguments),
        ) from error


def _name(function: object) -> str:
    """Return a function's module and qualified name; for other callable objects, their class's."""
    while isinstance(function, partial):
        function = function.func
    of: Any
    if hasattr(function, "__qualname__"):
        of = function
    else:
        of = type(function)
    return f"{of.__module__}.{of.__qualname__}"
