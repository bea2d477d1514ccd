"""Results of cutting an object: units, or a refusal with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from loader.errors import plain_value

Kind = Literal["image", "video", "audio", "text"]
Outcome = Literal["rejected", "not_supported", "not_media", "dropped"]
OUTCOMES: tuple[Outcome, ...] = ("rejected", "not_supported", "not_media", "dropped")
"""Outcomes without a sample: damaged; format not supported; not media; healthy but not accepted."""

CAPTION_FIELD = "caption.txt"
"""Field for text that came with an object or segment, in a group of its own."""
MetadataValue = bool | int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Piece of a raw object that becomes a sample."""

    start: str = ""
    """Start in the source, '<ticks>@<seconds per tick as a fraction>'; "" for a whole object."""
    end: str = ""
    """End in the source, in the same form; "" for the whole object."""
    fields: Mapping[str, Any]
    """Field name -> JSON value, or the path of a scratch file with encoded bytes."""
    metadata: Mapping[str, MetadataValue]
    """Column of the samples table -> value."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Field -> group, if not the kind's own."""
    request: str = ""
    """Request beside the policy, such as a given segment; part of the unit's id."""


class Unusable(Exception):
    """Raised for an object that yields no sample, and stored as a row of `refusals`.

    at_frame: a video's first incomplete frame. fields: where, given and accepted, as in `PenstockError`; not stored.
    """

    def __init__(
        self,
        outcome: Outcome,
        stage: str,
        code: str,
        reason: str,
        at_frame: int | None = None,
        **fields: object,
    ) -> None:
        super().__init__(outcome, stage, code, reason, at_frame)  # all arguments, so that it pickles
        self.outcome: Outcome = outcome
        self.stage = stage
        self.code = code
        self.reason = reason
        self.at_frame = at_frame
        for name, value in fields.items():
            setattr(self, name, plain_value(value))

    @property
    def what(self) -> str:
        """Code of the fault, such as too_long."""
        return self.code

    def __str__(self) -> str:
        return self.reason


def rejected(
    stage: str,
    code: str,
    reason: object,
    at_frame: int | None = None,
    **fields: object,
) -> Unusable:
    """Return the refusal of a damaged object.

    stage: such as probe, decode or cut. reason: cut to a line of 500 characters. fields: where, given and accepted.
    """
    line = _short(reason)
    return Unusable("rejected", stage, code, line, at_frame, **fields)


def not_supported(stage: str, code: str, reason: object, **fields: object) -> Unusable:
    """Return the refusal of an object in an unsupported format or codec, damaged or not."""
    line = _short(reason)
    return Unusable("not_supported", stage, code, line, None, **fields)


def not_media(stage: str, code: str, reason: object, **fields: object) -> Unusable:
    """Return the refusal of an object that is not media, despite its name."""
    line = _short(reason)
    return Unusable("not_media", stage, code, line, None, **fields)


def dropped(stage: str, code: str, reason: object, **fields: object) -> Unusable:
    """Return the refusal of a healthy object that this dataset does not accept."""
    line = _short(reason)
    return Unusable("dropped", stage, code, line, None, **fields)


def _short(reason: object) -> str:
    text = str(reason)
    words = text.split()
    line = " ".join(words)
    return line[:500]  # a library's message may hold a whole file


def at(ticks: int, time_base: tuple[int, int]) -> str:
    """Return a position in a stream as text: 1280@1/12800 is a tenth of a second."""
    numerator, denominator = time_base
    return f"{ticks}@{numerator}/{denominator}"
