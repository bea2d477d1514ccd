"""Results of cutting: units, or a refusal with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["image", "video", "audio", "text"]
Outcome = Literal["rejected", "not_supported", "not_media", "dropped"]
OUTCOMES: tuple[Outcome, ...] = ("rejected", "not_supported", "not_media", "dropped")
"""Outcomes without a sample: damaged; format not supported; not media; healthy but not accepted."""

MetadataValue = bool | int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One piece of a raw object, ready to become a sample."""

    start: str = ""
    """Start in the source, '<ticks>@<numerator>/<denominator>' s; "" for the whole."""
    end: str = ""
    """End in the source; "" for the whole."""
    fields: Mapping[str, Any]
    """Field name -> JSON value, or Path of a scratch file with the encoded bytes."""
    metadata: Mapping[str, MetadataValue]
    """Column -> value, for filters."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Field -> group, for fields outside their kind's own group."""
    request: str = ""
    """Request beyond the policy, such as a given segment; part of the unit's id."""


class Unusable(Exception):
    """Object without a sample: its outcome and reason become a row. at_frame: a video's first incomplete frame."""

    def __init__(
        self, outcome: Outcome, stage: str, code: str, reason: str, at_frame: int | None = None
    ) -> None:
        super().__init__(outcome, stage, code, reason, at_frame)  # all of them, so that it pickles
        self.outcome: Outcome = outcome
        self.stage, self.code, self.reason, self.at_frame = stage, code, reason, at_frame

    def __str__(self) -> str:
        return self.reason


def rejected(stage: str, code: str, reason: object, at_frame: int | None = None) -> Unusable:
    """Return the refusal of a damaged object; `stage`: where it was found, such as probe, decode or cut.

    The reason becomes one line of at most 500 characters.
    """
    return Unusable("rejected", stage, code, " ".join(str(reason).split())[:500], at_frame)


def not_supported(stage: str, code: str, reason: object) -> Unusable:
    """Return the refusal of an object of an unsupported format or codec, damaged or not."""
    return Unusable("not_supported", stage, code, " ".join(str(reason).split())[:500])


def not_media(stage: str, code: str, reason: object) -> Unusable:
    """Return the refusal of an object that is not media, despite its name."""
    return Unusable("not_media", stage, code, " ".join(str(reason).split())[:500])


def dropped(stage: str, code: str, reason: object) -> Unusable:
    """Return the refusal of a healthy object that this dataset does not accept."""
    return Unusable("dropped", stage, code, " ".join(str(reason).split())[:500])


def at(ticks: int, time_base: tuple[int, int]) -> str:
    """Return a position in a stream, exactly: 1280@1/12800 is a tenth of a second."""
    return f"{ticks}@{time_base[0]}/{time_base[1]}"
