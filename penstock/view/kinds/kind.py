"""The interface that every kind of value implements. Texts are bounded and free of control characters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as with_default
from typing import Any, Protocol

MEDIA_TYPES = ("image/png", "image/jpeg", "audio/wav")
"""Media types that a kind may return. Browsers execute none of them."""

EDGE_PX = 192
"""Default longer side of a thumbnail, in pixels."""

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
"""Mark name -> weight, for marks of values. The worst mark weighs the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a field that its value does not contain."""

    field: str
    """Field name, such as "jpg" or "tokens.npy"."""
    labels: Sequence[str] | Mapping[int, str] | None = None
    """Class index -> class name."""
    vocabulary: int | None = None
    """Size of the tokenizer's vocabulary."""
    tokenizer: str = ""
    """Name and SHA-256 of the tokenizer; "" if not recorded."""
    special: Mapping[int, str] = with_default(default_factory=dict)
    """Id of a special token -> its name."""
    decode: Callable[[Sequence[int]], str] | None = None
    """Function from token ids to their text, such as a tokenizer's `decode`."""
    rate: float | None = None
    """Audio samples or video frames per second."""
    sample: Mapping[str, Any] = with_default(default_factory=dict)
    """All fields of the same sample, including this one."""

    @property
    def word(self) -> str:
        """Lower-case last word of the field name, which selects the decoder."""
        return self.field.rpartition(".")[2].lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """A file that a browser shows or plays."""

    type: str
    """One of MEDIA_TYPES."""
    data: bytes = with_default(repr=False)
    """File content."""

    def __post_init__(self) -> None:
        if self.type not in MEDIA_TYPES:
            raise ValueError(f"media type {self.type!r}; accepted: {', '.join(MEDIA_TYPES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A warning about a value's fault that is easy to miss."""

    name: str
    """Stable name, such as "nan"."""
    text: str
    """Description in one line."""
    weight: int
    """Weight among a batch's marks. The worst mark weighs the most."""


def mark(name: str, text: str) -> Mark:
    return Mark(name=name, text=text, weight=WEIGHTS[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBox:
    """One token of a sequence."""

    id: int
    """Token id."""
    text: str
    """Name of a special token, or the token's text with visible whitespace; "" if unknown."""
    special: bool
    """True for a special token."""
    segment: int | None
    """Document number in a packed sequence, 0 outside of documents; None if the sequence is not packed."""
    masked: bool
    """True if the loss ignores the token."""
    values: Mapping[str, float]
    """Field -> this token's value, such as an advantage or a log-probability."""


class Thumbnail(Protocol):
    """Function that draws a small image of a value."""

    def __call__(self, value: Any, facts: Facts, edge: int = EDGE_PX) -> Media | None:
        """Return a PNG or JPEG of at most `edge` pixels per side; None if text serves better."""


def no_thumbnail(value: Any, facts: Facts, edge: int = EDGE_PX) -> Media | None:
    return None


def nothing(value: Any, facts: Facts) -> tuple[()]:
    """Return nothing: no media, marks or tokens."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of value. Except for `fits`, its functions require a value that fits. All are deterministic."""

    name: str
    """Kind name in KINDS."""
    fits: Callable[[Any, Facts], bool]
    """Return whether a value is of this kind. Must not raise."""
    lines: Callable[[Any, Facts], tuple[str, ...]]
    """Lines of text: shape, dtype, range, duration, or the text itself. Bounded and cleaned."""
    marks: Callable[[Any, Facts], tuple[Mark, ...]] = nothing
    """Marks of the value."""
    thumbnail: Thumbnail = no_thumbnail
    """Small image of the value."""
    detail: Callable[[Any, Facts], tuple[Media, ...]] = nothing
    """The whole value, pixel by pixel or sample by sample. Bounded."""
    boxes: Callable[[Any, Facts], tuple[TokenBox, ...]] = nothing
    """Individual tokens. Bounded."""
