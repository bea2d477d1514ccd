"""Replayed values of a slot or a rank's batch, their tokens' texts, and functions that run in that process."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

import loader
from loader.dataset.shards.address import SampleAddress
from loader.order.sources.items_view import ItemsView

from ..kinds.kind import UnsentObject, type_name
from .image_placement import Placement
from .recorded_decoders import RecordedDecoders

V = TypeVar("V")
T = TypeVar("T")
Take = Callable[["loader.Plan", V], T]
"""(plan, values) -> what the caller needs; picklable for a `RecipeProcess`."""
PartDigest = tuple[int, int, int, int]
"""For `Replay.settle`: (rank, world size, digest, substituted slots)."""
Digests = Sequence[PartDigest]
"""A step's recorded ones; none applies all substitutions."""
Texts = Mapping[str, Mapping[int, str]]
"""Field -> token -> text, of the recipe's tokenizers."""


class StepPart(NamedTuple):
    """A rank's part of a step."""

    step: int
    """Global step."""
    rank: int
    world_size: int
    """Number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A plan and the options that affect replayed values."""

    plan: str
    """Plan hash."""
    framework: str = "numpy"
    """Array library."""
    epochs: int | None = None
    """The Loader's; later slots are padding."""
    decoders: RecordedDecoders | None = None
    """Decoders of the training; empty with `decode=False`. None: the recipe's decoders, or one for each extension."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotValues:
    """A slot, decoded and transformed."""

    step: int
    """Global step."""
    slot: int
    """Global slot."""
    source: str
    """Source name in the plan."""
    epoch: int
    """Epoch of the source."""
    position: int
    """In the source's stream."""
    attempt: int
    """0 if planned; else the substitute's number."""
    address: SampleAddress
    """Location of its bytes; without fields for a packed sequence."""
    decoded: Mapping[str, Any] = field(repr=False)
    """Fields before the transform; empty if unreadable."""
    trained: Mapping[str, Any] = field(repr=False)
    """Fields after the transform, if there is one."""
    draws: tuple[str, ...] = ()
    """The transform's random draws from the sample's generator, as text."""
    repeats: bool = True
    """True if a second transform gave equal values."""
    error: str = ""
    """Why `decoded` or `trained` is empty, or ""."""
    missing: str = ""
    """Remedy if the sample's dataset is missing, or ""."""
    settled: bool | None = True
    """`Replay.settle`: True if substitutions are known."""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """Image field in `trained` -> place in the decoded image."""
    texts: Texts = field(default_factory=dict)
    """Its tokens' texts."""
    restored: Mapping[str, str] = field(default_factory=dict)
    """Field -> text of all its tokens, without special ones."""
    cut: Mapping[str, str] = field(default_factory=dict)
    """Partly decoded field -> text about its length."""


TakeValues = Callable[[int, Mapping[str, Any], Texts], None]
"""(slot within the part, values of some fields, their tokens' texts) -> None."""


def itself(plan: "loader.Plan", values: V) -> V:
    return values


def slot_itself(plan: "loader.Plan", values: SlotValues) -> SlotValues:
    """Return a slot's values as `as_arrays` does."""
    is_item = isinstance(plan.sources[values.source].view, ItemsView)
    decoded = as_arrays(values.decoded, is_item=is_item)
    trained = as_arrays(values.trained, is_item=is_item)
    return replace(values, decoded=decoded, trained=trained)


def as_arrays(sample: Mapping[str, Any], *, is_item: bool) -> dict[str, Any]:
    """Return tensors as arrays, because unpickling a tensor would import torch, or JAX.

    is_item: True for an item of a dataset, whose objects of other classes stay in its process.
    """
    sent = {name: detach(value) for name, value in sample.items()}
    if is_item:
        sent = {name: _without_objects(value) for name, value in sent.items()}
    return sent


_KNOWN_MODULES = frozenset(("builtins", "datetime", "decimal", "numpy", "torch"))


def _without_objects(value: Any) -> Any:
    """Return a value of an item whose objects of other modules are replaced by their names."""
    if type(value) is dict:
        return {key: _without_objects(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [_without_objects(item) for item in value]
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        shape = list(value.shape)
        return UnsentObject(f"{value.dtype} {shape}")
    module, _, _ = type(value).__module__.partition(".")
    if module in _KNOWN_MODULES:
        return value
    return UnsentObject(type_name(value))


def detach(value: Any) -> Any:
    """Return the values of a tensor, or of a JAX array, as an array of their own.

    Pickling a view would pickle its whole batch.
    """
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.Array):
        return np.array(value)
    if not hasattr(value, "clone"):
        return value
    copy = value.detach().clone()
    try:
        return copy.numpy(force=True)
    except TypeError:  # numpy has no bfloat16
        return copy


MOST_TOKENS = 2**16
"""Distinct tokens decoded per field."""
MOST_LETTERS = 200
MOST_RESTORED = 2**20
"""Tokens of the longest sequence decoded as a whole."""


def special_tokens(facts: Mapping[str, Any]) -> dict[int, str]:
    """Return special token -> name from a field's facts, which may be any JSON."""
    special = facts.get("special")
    named = special.items() if isinstance(special, dict) else ()
    return {int(token): str(name) for token, name in named if token.isdecimal() and len(token) < 19}


def decode_texts(
    tokenizers: Mapping[str, Any], sample: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Return field -> text of all its tokens at once, without special tokens and rejected sequences.

    Single tokens would lose whitespace and parts of characters.
    """
    out = {}
    for name in tokenizers.keys() & sample.keys():
        ids = np.asarray(sample[name])
        if ids.dtype.kind in "iu" and ids.size <= MOST_RESTORED:
            special = {*special_tokens(facts.get(name, {})), *_special_ids(tokenizers[name])}
            plain = [token for token in ids.reshape(-1).tolist() if token not in special]
            text = _decode(tokenizers[name], plain)
            if text is not None:
                out[name] = text
    return out


def _special_ids(tokenizer: Any) -> set[int]:
    ids = getattr(tokenizer, "all_special_ids", ())
    if isinstance(ids, list | tuple):
        return {one for one in ids if isinstance(one, int)}
    return set()


def _decode(tokenizer: Any, ids: list[int]) -> str | None:
    try:
        return str(getattr(tokenizer, "decode", tokenizer)(ids))
    except Exception:  # noqa: BLE001 - the user's code may raise any type
        return None


def token_texts(
    tokenizers: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]
) -> dict[str, dict[int, str]]:
    """Return field -> token -> text."""
    return TokenTexts(tokenizers)(*samples)


class TokenTexts:
    """Decodes each token once. One that its tokenizer rejects gets no text."""

    def __init__(self, tokenizers: Mapping[str, Any]) -> None:
        self._tokenizers = tokenizers
        self._known: dict[str, dict[int, str | None]] = {field: {} for field in tokenizers}

    def __call__(self, *samples: Mapping[str, Any]) -> dict[str, dict[int, str]]:
        return {field: self._texts(field, samples) for field in self._tokenizers}

    def _texts(self, field: str, samples: Iterable[Mapping[str, Any]]) -> dict[int, str]:
        arrays = [np.asarray(sample[field]) for sample in samples if field in sample]
        ids = [np.unique(array) for array in arrays if array.dtype.kind in "iu"]
        if not ids:
            return {}
        known = self._known[field]
        out = {}
        for token in np.unique(np.concatenate(ids)).tolist()[:MOST_TOKENS]:
            if token not in known and len(known) < MOST_TOKENS:
                text = _decode(self._tokenizers[field], [token])
                known[token] = None if text is None else text[:MOST_LETTERS]
            text = known.get(token)
            if text is not None:
                out[token] = text
        return out
