"""What cutting gives: units, or a refusal with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["image", "video", "audio", "text"]
Outcome = Literal["rejected", "dropped"]
MetadataValue = bool | int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One piece of a raw object, ready to be a sample.

    start, end: where it lies in the source, as '<ticks>@<numerator>/<denominator>' s, empty for the whole
    object; fields: field name -> a JSON value, or the Path of a scratch file that holds the encoded bytes;
    groups: field -> the group it goes to, for those that do not go to their kind's own (a clip's sound); units of
    a kind may differ in their fields, and then belong into different parts; metadata: columns to filter on; request:
    what was asked for where it is more than a policy says, such as a given segment: part of the unit's id.
    """

    start: str = ""
    end: str = ""
    fields: Mapping[str, Any]
    metadata: Mapping[str, MetadataValue]
    groups: Mapping[str, str] = field(default_factory=dict)
    request: str = ""


class Unusable(Exception):
    """An object that gives no sample: rejected (damaged) or dropped (sound, not wanted). Becomes a row.

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
    """A damaged object; `stage` is probe, decode or cut. The reason is cut to 500 letters, on one line."""
    return Unusable("rejected", stage, code, " ".join(str(reason).split())[:500], at_frame)


def dropped(stage: str, code: str, reason: object) -> Unusable:
    """A sound object that this dataset does not take."""
    return Unusable("dropped", stage, code, " ".join(str(reason).split())[:500])


def at(ticks: int, time_base: tuple[int, int]) -> str:
    """A place in a stream, exactly: 1280@1/12800 is a tenth of a second."""
    return f"{ticks}@{time_base[0]}/{time_base[1]}"
