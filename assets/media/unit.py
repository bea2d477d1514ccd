"""What cutting gives: units, or a refusal with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["image", "video", "audio", "text"]
Outcome = Literal["rejected", "dropped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPolicy:
    """How samples are cut. Everything here is part of a unit's id: another policy gives other units.

    max_clips: clips taken from one video, spread evenly over it; short_side_px: of images and clips alike,
    never enlarged; segment_s: the longest piece of speech.
    """

    short_side_px: int = 256
    jpeg_quality: int = 92
    clip_s: float = 2.5
    max_clips: int = 8
    segment_s: float = 5.0
    sample_rate_hz: int = 16_000

    def __post_init__(self) -> None:
        if not 16 <= self.short_side_px <= 4096:
            raise ValueError(f"short_side_px={self.short_side_px}; accepted: 16 to 4096")
        if not 1 <= self.jpeg_quality <= 100:
            raise ValueError(f"jpeg_quality={self.jpeg_quality}; accepted: 1 to 100")
        if self.max_clips < 1 or not 0.2 <= self.clip_s <= 60 or not 0.5 <= self.segment_s <= 60:
            raise ValueError(
                f"max_clips={self.max_clips}, clip_s={self.clip_s}, segment_s={self.segment_s}; accepted: "
                "1 clip or more, clips of 0.2 to 60 s, segments of 0.5 to 60 s"
            )
        if not 8_000 <= self.sample_rate_hz <= 48_000:
            raise ValueError(f"sample_rate_hz={self.sample_rate_hz}; accepted: 8000 to 48000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One piece of a raw object, ready to be a sample.

    start, end: where it lies in the source, as '<ticks>@<numerator>/<denominator>' s, empty for the whole
    object; fields: field name -> a JSON value, or the Path of a scratch file that holds the encoded bytes;
    groups: field -> the group it goes to, for those that do not go to their kind's own (a clip's sound); units of
    a kind may differ in their fields, and then belong into different parts; metadata: columns to filter on.
    """

    start: str = ""
    end: str = ""
    fields: Mapping[str, Any]
    metadata: Mapping[str, bool | int | float | str | None]
    groups: Mapping[str, str] = field(default_factory=dict)


class Unusable(Exception):
    """An object that gives no sample: rejected (damaged) or dropped (sound, not wanted). Becomes a row."""

    def __init__(self, outcome: Outcome, stage: str, code: str, reason: str) -> None:
        super().__init__(outcome, stage, code, reason)  # all four, so that it can be pickled
        self.outcome: Outcome = outcome
        self.stage, self.code, self.reason = stage, code, reason

    def __str__(self) -> str:
        return self.reason


def rejected(stage: str, code: str, reason: object) -> Unusable:
    """A damaged object; `stage` is probe, decode or cut. The reason is cut to 500 letters, on one line."""
    return Unusable("rejected", stage, code, " ".join(str(reason).split())[:500])


def dropped(stage: str, code: str, reason: object) -> Unusable:
    """A sound object that this dataset does not take."""
    return Unusable("dropped", stage, code, " ".join(str(reason).split())[:500])


def at(ticks: int, time_base: tuple[int, int]) -> str:
    """A place in a stream, exactly: 1280@1/12800 is a tenth of a second."""
    return f"{ticks}@{time_base[0]}/{time_base[1]}"
