"""Results of cutting: units, or a refusal with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["image", "video", "audio", "text"]
Outcome = Literal["rejected", "not_supported", "not_media", "dropped"]
OUTCOMES: tuple[Outcome, ...] = ("rejected", "not_supported", "not_media", "dropped")
"""Outcomes of objects without a sample: damaged; of a format that nothing here reads; no media; sound, not wanted."""

MetadataValue = bool | int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One piece of a raw object, ready to be a sample.

    Units of a kind may differ in their fields, and then belong into different parts.
    """

    start: str = ""
    """Start in the source, as '<ticks>@<numerator>/<denominator>' s; "" for the whole object."""
    end: str = ""
    """End in the source, as `start`; "" for the whole object."""
    fields: Mapping[str, Any]
    """Field name -> JSON value, or the Path of a scratch file that holds the encoded bytes."""
    metadata: Mapping[str, MetadataValue]
    """Column -> value, to filter on."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Field -> group, for fields outside of their kind's own group (a clip's sound)."""
    request: str = ""
    """Request beyond the policy, such as a given segment: part of the unit's id; "" for none."""


class Unusable(Exception):
    """An object that gives no sample, with its outcome (`OUTCOMES`) and the reason. It becomes a row.

    at_frame: of a video, the number of the first frame that could not be had whole.
    """

    def __init__(
        self, outcome: Outcome, stage: str, code: str, reason: str, at_frame: int | None = None
    ) -> None:
        super().__init__(outcome, stage, code, reason, at_frame)  # all of them, so that it can be pickled
        self.outcome: Outcome = outcome
        self.stage, self.code, self.reason, self.at_frame = stage, code, reason, at_frame

    def __str__(self) -> str:
        return self.reason


def rejected(stage: str, code: str, reason: object, at_frame: int | None = None) -> Unusable:
    """Return the refusal of a damaged object; `stage` is probe, decode or cut.

    The reason is cut to 500 letters, on one line.
    """
    return Unusable("rejected", stage, code, " ".join(str(reason).split())[:500], at_frame)


def not_supported(stage: str, code: str, reason: object) -> Unusable:
    """Return the refusal of an object whose format or codec is not supported; nothing says that it is damaged."""
    return Unusable("not_supported", stage, code, " ".join(str(reason).split())[:500])


def not_media(stage: str, code: str, reason: object) -> Unusable:
    """Return the refusal of an object that is no image, sound, video or text, although it came in the place of one."""
    return Unusable("not_media", stage, code, " ".join(str(reason).split())[:500])


def dropped(stage: str, code: str, reason: object) -> Unusable:
    """Return the refusal of a sound object that this dataset does not take."""
    return Unusable("dropped", stage, code, " ".join(str(reason).split())[:500])


def at(ticks: int, time_base: tuple[int, int]) -> str:
    """Return a place in a stream, exactly: 1280@1/12800 is a tenth of a second."""
    return f"{ticks}@{time_base[0]}/{time_base[1]}"
