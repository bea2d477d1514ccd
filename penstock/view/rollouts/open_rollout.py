"""Read a rollout within bounds: its arrays per token, the shapes of its other fields, its turns.

A field up to `WHOLE_BYTES` is read whole and checked. Only the header of a larger one is read, unless it is an array of
one dimension, which may have a value per token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.shards.address import SampleAddress
from loader.errors import Corrupt, DecodeFailed
from loader.modalities.array import CLOCK, decode, npy_layout
from loader.rollouts.rollout_fields import MASK, TOKENS, TURNS, VERSIONS

from ...text import clean
from ...units import size
from ..episodes.verified_field import VerifiedField
from ..json_record import JsonRecord
from .turns import MOST_TURN_BYTES, RolloutTurn, parse_turns

WHOLE_BYTES = 4 * 2**20
"""Largest field that is always read whole, in bytes."""
MOST_FIELD_BYTES = 32 * 2**20
"""Largest array of a value per token that is read, in bytes."""
HEAD_BYTES = 12 * 2**10
"""Bytes that hold the header of any `.npy` file."""
MOST_FIELDS = 64
"""Most fields of a sample that are read; real rollouts have up to fifteen."""

Array = NDArray[Any]


def tokens_field(names: Sequence[str]) -> str:
    """Return the token field of a rollout, or of a chat with a mask, or "": its mask has the same prefix."""
    for name in names:
        if name.endswith(TOKENS) and mask_field(name) in names:
            return name
    return ""


def mask_field(tokens: str) -> str:
    return tokens.removesuffix(TOKENS) + MASK


def is_rollout(names: Sequence[str]) -> bool:
    """Return whether a sample with these fields has tokens and a mask, and is not an episode."""
    has_clock = any(name.endswith(CLOCK) for name in names)
    return not has_clock and tokens_field(names) != ""


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class FieldShape(JsonRecord):
    """A field of a rollout."""

    field: str
    nbytes: int
    shape: str
    """Such as "uint16 [812, 48, 8]"; "" if it is not an array, or damaged."""
    is_per_token: bool
    """True if the page shows a value of it for each token."""
    is_checked: bool
    """True if all its bytes were read, and their CRC-32C is right."""
    error: str = ""
    """Its damage, or ""."""


@dataclass(
    frozen=True,
    kw_only=True,
    eq=False,
)
class OpenRollout:
    """A rollout's fields."""

    version: loader.Version
    ordinal: int
    tokens: str
    """Name of the token field."""
    values: Mapping[str, Array]
    """Field -> one value per token, [n_tokens]; the token field is there unless it is damaged."""
    shapes: tuple[FieldShape, ...]
    """Fields by name: tokens, mask and turns, and the first of the others."""
    n_fields: int
    """All fields, also those beyond the listed ones."""
    turns: tuple[RolloutTurn, ...]
    n_turns: int
    """All turns, also those beyond the listed ones."""

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes."""
        arrays = sum(array.nbytes for array in self.values.values())
        texts = sum(len(line) for turn in self.turns for line in turn.lines)
        return 4096 + arrays + texts + 512 * len(self.turns)

    @property
    def n_tokens(self) -> int:
        """Number of tokens; 0 if they are damaged."""
        return len(self.values.get(self.tokens, ()))

    @cached_property
    def is_sampled(self) -> NDArray[np.bool_]:
        """bool [n_tokens]: the mask; all False if it is damaged."""
        mask = self.values.get(mask_field(self.tokens))
        if mask is None:
            return np.zeros(self.n_tokens, np.bool_)
        is_sampled: NDArray[np.bool_] = mask != 0
        return is_sampled

    @property
    def versions(self) -> Array | None:
        """int [n_tokens]: version of the policy that sampled each token, or None."""
        values = self.values.get(VERSIONS)
        if values is not None and values.dtype.kind in "iu":
            return values
        return None

    @property
    def errors(self) -> dict[str, str]:
        """Field -> what is wrong with it."""
        return {shape.field: shape.error for shape in self.shapes if shape.error}


def open_rollout(
    version: loader.Version,
    ordinal: int,
    names: Sequence[str],
) -> OpenRollout:
    """Return a rollout. names: fields of the sample. Damaged fields have an error. Raises: StoreError."""
    # A sample may have any number of fields: the page reads a bounded number of them.
    tokens = tokens_field(names)
    needed = {tokens, mask_field(tokens), TURNS}
    first = sorted(names, key=lambda name: (name not in needed, name))
    listed = sorted(first[:MOST_FIELDS])
    (address,) = version.address(np.array([ordinal]), listed)
    read = _read_small(version, address)
    arrays: dict[str, Array] = {}
    shapes: dict[str, FieldShape] = {}
    for name in listed:
        shape, array = _open_field(
            version,
            address,
            name,
            read.get(name),
        )
        shapes[name] = shape
        if array is not None:
            arrays[name] = array
    values = _values_per_token(
        tokens,
        arrays,
        shapes,
    )

    turns: tuple[RolloutTurn, ...] = ()
    n_turns = 0
    if TURNS in shapes:
        n_tokens = len(values.get(tokens, ()))
        data = read.get(TURNS)
        turns, n_turns, error = _turns(
            shapes[TURNS].nbytes,
            data,
            n_tokens,
        )
        shapes[TURNS] = replace(shapes[TURNS], error=shapes[TURNS].error or error)
    return OpenRollout(
        version=version,
        ordinal=ordinal,
        tokens=tokens,
        values=values,
        shapes=tuple(shapes.values()),
        n_fields=len(names),
        turns=turns,
        n_turns=n_turns,
    )


def read_separately(
    version: loader.Version, addresses: Sequence[SampleAddress]
) -> list[dict[str, bytes | Corrupt]]:
    """Return field -> bytes or error for each address. A damaged field does not hide the others of its sample."""
    # One address per field: a reader drops a sample whole if one of its fields is damaged.
    single_fields: list[SampleAddress] = []
    owners: list[tuple[int, str]] = []
    for number, address in enumerate(addresses):
        for name, place in address.fields.items():
            single_fields.append(replace(address, fields={name: place}))
            owners.append((number, name))
    errors: dict[int, Corrupt] = {}
    data = read_fields(
        version.shard_store,
        single_fields,
        on_corrupt=errors.__setitem__,
    )
    result: list[dict[str, bytes | Corrupt]] = [{} for _ in addresses]
    for position, (number, name) in enumerate(owners):
        result[number][name] = errors.get(position) or data[position][name]
    return result


def _read_small(version: loader.Version, address: SampleAddress) -> dict[str, bytes | Corrupt]:
    """Return field -> bytes or error, for the fields that are small enough to be read whole."""
    small = {name: place for name, place in address.fields.items() if place.nbytes <= WHOLE_BYTES}
    (read,) = read_separately(version, [replace(address, fields=small)])
    return read


def _open_field(
    version: loader.Version,
    address: SampleAddress,
    name: str,
    data: bytes | Corrupt | None,
) -> tuple[FieldShape, Array | None]:
    """Return a field's shape, and its values if it is an array of one dimension. data: None if it is too large."""
    place = address.fields[name]
    plain = FieldShape(
        field=name,
        nbytes=place.nbytes,
        shape="",
        is_per_token=False,
        is_checked=False,
    )
    if isinstance(data, Corrupt):
        return replace(plain, error=clean(data, 400)), None
    if not name.endswith(".npy"):
        return replace(plain, is_checked=data is not None), None
    try:
        if data is not None:
            array = decode(data)
            shape = replace(
                plain,
                shape=shape_text(array.dtype, array.shape),
                is_checked=True,
            )
            return shape, array if array.ndim == 1 else None
        return _open_large(
            version,
            address,
            plain,
        )
    except Corrupt as error:
        return replace(plain, error=clean(error, 400)), None


def _open_large(
    version: loader.Version,
    address: SampleAddress,
    plain: FieldShape,
) -> tuple[FieldShape, Array | None]:
    """Return the same as `_open_field` for a field that is not read yet. Raises: Corrupt."""
    place = address.fields[plain.field]
    field = VerifiedField(
        version,
        place,
        address.describe(plain.field),
    )
    layout = npy_layout(field.head(HEAD_BYTES))
    shape = replace(plain, shape=shape_text(layout.dtype, layout.shape))
    # The header is not checked by itself, so it decides only what is read, and the whole is checked then.
    is_readable = len(layout.shape) == 1 and place.nbytes <= MOST_FIELD_BYTES
    if not is_readable:
        return shape, None
    array = decode(field.whole())
    return replace(shape, is_checked=True), array


def shape_text(dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    return f"{clean(dtype, 40)} {list(shape[:8])}"


def _values_per_token(
    tokens: str,
    arrays: Mapping[str, Array],
    shapes: dict[str, FieldShape],
) -> dict[str, Array]:
    """Return the arrays that have a value per token, and add an error to the shape of each array of another length."""
    ids = arrays.get(tokens)
    if ids is None or ids.dtype.kind not in "iu":
        if not shapes[tokens].error:
            stored = shapes[tokens].shape or f"{size(shapes[tokens].nbytes)} of no array"
            error = f"{tokens} is {stored}; token ids are whole numbers of one dimension"
            shapes[tokens] = replace(shapes[tokens], error=error)
        return {}
    values: dict[str, Array] = {}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            continue
        if len(array) == len(ids):
            values[name] = array
            shapes[name] = replace(shapes[name], is_per_token=True)
        elif name not in _OF_OTHER_LENGTH:
            error = f"{name} has {len(array):,} values, {tokens} {len(ids):,}"
            shapes[name] = replace(shapes[name], error=error)
    return values


_OF_OTHER_LENGTH = frozenset(("kept.npy",))
"""Arrays of one dimension that have any number of rows."""


def _turns(
    nbytes: int,
    data: bytes | Corrupt | None,
    n_tokens: int,
) -> tuple[tuple[RolloutTurn, ...], int, str]:
    """Return (turns, number of all turns, error or "")."""
    if isinstance(data, Corrupt):
        return (), 0, clean(data, 400)
    if data is None or nbytes > MOST_TURN_BYTES:
        return (), 0, f"{TURNS} has {size(nbytes)}; up to {size(MOST_TURN_BYTES)} are shown"
    try:
        return *parse_turns(data, n_tokens), ""
    except DecodeFailed as error:
        return (), 0, clean(error, 400)
