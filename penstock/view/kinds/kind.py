"""The interface of a kind of value. Texts are bounded and free of control characters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as with_default
from typing import Any, Protocol

MEDIA_TYPES = ("image/png", "image/jpeg", "audio/wav")
"""Types that browsers do not execute."""

EDGE_PX = 192
"""Thumbnail's longer side by default, in pixels."""

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
"""Weight by mark; the worst weighs the most."""


@dataclass(frozen=True, slots=True)
class UnsentObject:
    """Stands for an object whose class exists only in the process of the user's code."""

    type_name: str
    """Its module and class, or what it holds."""

    def __str__(self) -> str:
        return self.type_name


def type_name(value: object) -> str:
    """Return a value's module and class."""
    if isinstance(value, UnsentObject):
        return value.type_name
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a field beside its value."""

    field: str
    """Such as "jpg" or "tokens.npy"."""
    labels: Sequence[str] | Mapping[int, str] | None = None
    """Names by class index."""
    vocabulary: int | None = None
    """The tokenizer's size."""
    tokenizer: str = ""
    """Name and SHA-256, or ""."""
    special: Mapping[int, str] = with_default(default_factory=dict)
    """Special token id -> name."""
    decode: Callable[[Sequence[int]], str] | None = None
    """Token ids -> text, such as a tokenizer's `decode`."""
    rate: float | None = None
    """Audio samples or video frames per second."""
    sample: Mapping[str, Any] = with_default(default_factory=dict)
    """All fields of the sample."""

    @property
    def word(self) -> str:
        """Field name's last word in lower case, which selects the decoder."""
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
    """A warning of a fault that is easy to miss."""

    name: str
    """Such as "nan"; stable."""
    text: str
    """One line."""
    weight: int
    """Weight in a batch; the worst weighs the most."""


def mark(name: str, text: str) -> Mark:
    return Mark(name=name, text=text, weight=WEIGHTS[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBox:
    """A token."""

    id: int
    text: str
    """Special token's name, or text with visible whitespace, or ""."""
    special: bool
    """Is a special token."""
    segment: int | None
    """Document in a packed sequence, 0 outside; None if not packed."""
    masked: bool
    """The loss ignores it."""
    values: Mapping[str, float]
    """Field -> this token's, such as a log-probability."""


class Thumbnail(Protocol):
    """Draws a small image of a value."""

    def __call__(self, value: Any, facts: Facts, edge: int = EDGE_PX) -> Media | None:
        """Return a PNG or JPEG of at most `edge` pixels per side; None if text serves better."""


def no_thumbnail(value: Any, facts: Facts, edge: int = EDGE_PX) -> Media | None:
    return None


def nothing(value: Any, facts: Facts) -> tuple[()]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Functions for a kind of value, deterministic; all but `fits` require one that fits."""

    name: str
    fits: Callable[[Any, Facts], bool]
    """Returns whether a value is of this kind; must not raise."""
    lines: Callable[[Any, Facts], tuple[str, ...]]
    """Shape, dtype, range, duration, or the text itself. Bounded and cleaned."""
    marks: Callable[[Any, Facts], tuple[Mark, ...]] = nothing
    """Warnings."""
    thumbnail: Thumbnail = no_thumbnail
    """Small image."""
    detail: Callable[[Any, Facts], tuple[Media, ...]] = nothing
    """The value pixel by pixel or sample by sample. Bounded."""
    boxes: Callable[[Any, Facts], tuple[TokenBox, ...]] = nothing
    """Tokens. Bounded."""
