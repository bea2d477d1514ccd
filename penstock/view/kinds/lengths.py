"""Lengths of a film and of its sound, which a cut or a wrong rate lets differ."""

from collections.abc import Mapping

from ...units import length
from .kind import Mark, mark

TOLERANCE_S, TOLERANCE_FRAMES = 0.25, 2
"""Sound may be longer or shorter than its pictures by so much: encoders fill blocks, cuts end with a frame."""


def length_marks(picture_s: float, sounds: Mapping[str, float], frame_s: float) -> tuple[Mark, ...]:
    """Return a mark where sound and picture of one sample differ in length.

    picture_s: seconds of the pictures, frame_s: of one of them. sounds: name of each sound -> its seconds.
    """
    apart = [
        f"{name} takes {length(seconds)}"
        for name, seconds in sounds.items()
        if abs(seconds - picture_s) > max(TOLERANCE_S, TOLERANCE_FRAMES * frame_s)
    ]
    if not apart:
        return ()
    return (mark("lengths_differ", f"the pictures take {length(picture_s)}, {', '.join(apart)}"),)
