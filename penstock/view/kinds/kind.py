"""A kind of value: the functions that show a field's value as pictures, sound, text and marks.

Limits are applied before anything is decoded or allocated, and every text is free of control characters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as with_default
from typing import Any, Protocol

MEDIA_TYPES = ("image/png", "image/jpeg", "audio/wav")
"""Media types that a kind may give: none that a browser would run."""

EDGE_PX = 192
"""Pixels of a thumbnail's longer side, unless asked otherwise."""

WEIGHTS = {
    "unreadable": 100,
    "nan": 95,
    "infinite": 94,
    "out_of_vocabulary": 90,
    "out_of_range": 90,
    "no_target": 85,
    "empty": 80,
    "silent": 78,
    "frozen": 77,
    "black": 76,
    "constant": 75,
    "saturated": 72,
    "lengths_differ": 65,
    "clipped": 60,
    "not_scaled": 50,
    "no_end": 42,
    "replaced_letters": 40,
    "hidden_letters": 35,
}
"""Name -> weight of each mark of a value; the worst has the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a field beside its value."""

    field: str
    """Name of the field, such as "jpg" or "tokens.npy"."""
    labels: Sequence[str] | Mapping[int, str] | None = None
    """Class names by their number."""
    vocabulary: int | None = None
    """Tokens of the tokenizer."""
    tokenizer: str = ""
    """Name and SHA-256 of the tokenizer that made the tokens; "" for not told."""
    special: Mapping[int, str] = with_default(default_factory=dict)
    """Names of special tokens by their id."""
    decode: Callable[[Sequence[int]], str] | None = None
    """Text of tokens by their ids, such as a tokenizer's `decode`."""
    rate: float | None = None
    """Samples of sound, or pictures, a second."""
    sample: Mapping[str, Any] = with_default(default_factory=dict)
    """All fields of the same sample, this one among them."""

    @property
    def word(self) -> str:
        """The last word of the field's name, in lower case: it picks the decoder."""
        return self.field.rpartition(".")[2].lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """Bytes that a browser shows or plays."""

    type: str
    """One of MEDIA_TYPES."""
    data: bytes = with_default(repr=False)
    """The file."""

    def __post_init__(self) -> None:
        if self.type not in MEDIA_TYPES:
            raise ValueError(f"media type {self.type!r}; accepted: {', '.join(MEDIA_TYPES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A fault of a value that a person would overlook."""

    name: str
    """Stable name, such as "nan"."""
    text: str
    """The fault in words, one line."""
    weight: int
    """Weight among the marks of a batch; the worst has the largest."""


def mark(name: str, text: str) -> Mark:
    """Return a mark with the weight that its name has."""
    return Mark(name=name, text=text, weight=WEIGHTS[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBox:
    """One token of a sequence."""

    id: int
    """Number of the token."""
    text: str
    """Name of a special token, or the token's text with its blanks made visible; "" where nobody knows."""
    special: bool
    """True for a special token."""
    segment: int | None
    """Number of its document in a packed sequence, 0 for none; None where the sequence is not packed."""
    masked: bool
    """True where the loss does not count it."""
    values: Mapping[str, float]
    """Field -> value of this token, such as an advantage or a log-probability."""


class Thumbnail(Protocol):
    """A function that makes a small picture of a value."""

    def __call__(self, value: Any, facts: Facts, edge: int = EDGE_PX) -> Media | None:
        """Return a PNG or JPEG of at most `edge` pixels a side; None for a value that text shows better."""


def no_thumbnail(value: Any, facts: Facts, edge: int = EDGE_PX) -> Media | None:
    """Return None."""
    return None


def nothing(value: Any, facts: Facts) -> tuple[()]:
    """Return no media, no marks and no tokens."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of value. Its functions take a value that `fits`; they write nothing, and equal values give equal results.

    A value is a tensor or array of any dtype, bytes, or any other Python object.
    """

    name: str
    """Name in KINDS."""
    fits: Callable[[Any, Facts], bool]
    """Return whether a value is of this kind; False, and no error, for every other."""
    lines: Callable[[Any, Facts], tuple[str, ...]]
    """Lines of text shown everywhere: shape, dtype, range, duration, the text itself. Bounded, and cleaned."""
    marks: Callable[[Any, Facts], tuple[Mark, ...]] = nothing
    """Faults of the value."""
    thumbnail: Thumbnail = no_thumbnail
    """Small picture of the value."""
    detail: Callable[[Any, Facts], tuple[Media, ...]] = nothing
    """The value in full: pixel for pixel, sample for sample. Bounded."""
    boxes: Callable[[Any, Facts], tuple[TokenBox, ...]] = nothing
    """Tokens one by one. Bounded."""
