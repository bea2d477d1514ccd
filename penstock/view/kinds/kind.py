"""The interface of a kind of value. Texts are bounded, and free of control characters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as with_default
from typing import Any, Protocol

MEDIA_TYPES = ("image/png", "image/jpeg", "audio/wav")
"""Media types that a kind may return: none that a browser would run."""

EDGE_PX = 192
"""Default pixels of a thumbnail's longer side."""

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
    """Facts about a field, besides its value."""

    field: str
    """Name, such as "jpg" or "tokens.npy"."""
    labels: Sequence[str] | Mapping[int, str] | None = None
    """Class names by number."""
    vocabulary: int | None = None
    """Size of the tokenizer's vocabulary."""
    tokenizer: str = ""
    """Name and SHA-256 of the tokenizer; "" if not on record."""
    special: Mapping[int, str] = with_default(default_factory=dict)
    """Names of special tokens by id."""
    decode: Callable[[Sequence[int]], str] | None = None
    """Function of token ids that returns their text, such as a tokenizer's `decode`."""
    rate: float | None = None
    """Audio samples, or video frames, per second."""
    sample: Mapping[str, Any] = with_default(default_factory=dict)
    """All fields of the same sample, including this one."""

    @property
    def word(self) -> str:
        """Last word of the field's name in lower case, which selects the decoder."""
        return self.field.rpartition(".")[2].lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """Bytes that a browser shows or plays."""

    type: str
    """One of MEDIA_TYPES."""
    data: bytes = with_default(repr=False)
    """Content of the file."""

    def __post_init__(self) -> None:
        if self.type not in MEDIA_TYPES:
            raise ValueError(f"media type {self.type!r}; accepted: {', '.join(MEDIA_TYPES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A fault of a value that is easy to miss."""

    name: str
    """Stable name, such as "nan"."""
    text: str
    """One line of text."""
    weight: int
    """Weight among the marks of a batch; the worst has the largest."""


def mark(name: str, text: str) -> Mark:
    return Mark(name=name, text=text, weight=WEIGHTS[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBox:
    """One token of a sequence."""

    id: int
    """Token id."""
    text: str
    """Name of a special token, or the token's text with visible blanks; "" if unknown."""
    special: bool
    """True for a special token."""
    segment: int | None
    """Number of its document in a packed sequence, 0 for none; None if the sequence is not packed."""
    masked: bool
    """True if the loss ignores it."""
    values: Mapping[str, float]
    """Field -> value of this token, such as an advantage or a log-probability."""


class Thumbnail(Protocol):
    """Function that draws a small image of a value."""

    def __call__(self, value: Any, facts: Facts, edge: int = EDGE_PX) -> Media | None:
        """Return a PNG or JPEG of at most `edge` pixels a side; None if text is better."""


def no_thumbnail(value: Any, facts: Facts, edge: int = EDGE_PX) -> Media | None:
    return None


def nothing(value: Any, facts: Facts) -> tuple[()]:
    """Return no media, no marks and no tokens."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of value. Its functions take a value that `fits`, write nothing, and are deterministic."""

    name: str
    """Name in KINDS."""
    fits: Callable[[Any, Facts], bool]
    """Return whether a value is of this kind; must not raise."""
    lines: Callable[[Any, Facts], tuple[str, ...]]
    """Lines of text shown everywhere: shape, dtype, range, duration, the text itself. Bounded and cleaned."""
    marks: Callable[[Any, Facts], tuple[Mark, ...]] = nothing
    """Faults of the value."""
    thumbnail: Thumbnail = no_thumbnail
    """Small image of the value."""
    detail: Callable[[Any, Facts], tuple[Media, ...]] = nothing
    """The whole value, pixel for pixel or sample for sample. Bounded."""
    boxes: Callable[[Any, Facts], tuple[TokenBox, ...]] = nothing
    """Single tokens. Bounded."""
