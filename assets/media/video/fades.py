"""Find fades: runs of frames without contrast between two different scenes."""

from collections import deque
from typing import NamedTuple

from .frame_levels import Frames
from .shifted_correlation import best_correlation

FLAT_STD = 2.5
"""A frame whose pixels deviate less, in levels of 255, is flat: it has no contrast."""
SAME_SCENE = 0.6
"""Lowest correlation within a scene."""
COMPARED_FRAMES = 6
"""Frames with contrast on each side of a flat run that a fade compares."""


class Boundary(NamedTuple):
    """The first frame of a shot."""

    number: int
    """Number of the frame in the video."""
    pts: int


class FadeFinder:
    """Finds the fades among the frames of a video, fed one by one in display order.

    The scenes are compared once `COMPARED_FRAMES` frames with contrast, or fewer and the next flat frame, follow a run.
    """

    def __init__(self) -> None:
        self.cuts: list[Boundary] = []
        """First frame with contrast after each fade."""
        # Latest frames with contrast that no flat frame separates: before a flat run, later after it.
        self._contrasted: deque[Frames] = deque(maxlen=COMPARED_FRAMES)
        # Far and near frame before the flat run; None if there is no run whose scenes are yet to be compared.
        self._before: tuple[Frames, Frames] | None = None
        # First frame with contrast after that run; None during the run.
        self._after: Boundary | None = None

    @property
    def is_idle(self) -> bool:
        """True if no flat run waits for the scene after it."""
        return self._before is None

    def add(
        self,
        number: int,
        pts: int,
        frame: Frames,
        is_flat: bool,
    ) -> None:
        """Add the next frame."""
        if is_flat:
            self._add_flat()
            return

        if self._before is not None and self._after is None:
            self._after = Boundary(number, pts)
        self._contrasted.append(frame)
        if len(self._contrasted) == COMPARED_FRAMES:
            self._compare_scenes()  # does nothing unless a flat run came before these frames

    def _add_flat(self) -> None:
        # The frames after the last run end here, so they are all that its scenes can be compared by.
        self._compare_scenes()
        if self._contrasted:
            far = self._contrasted[0]
            near = self._contrasted[-1]
            self._before = (far, near)
            self._contrasted.clear()

    def finish(self) -> list[Boundary]:
        """Return the cuts of the whole video. Call once, after the last frame."""
        self._compare_scenes()
        return self.cuts

    def _compare_scenes(self) -> None:
        """Add a cut if the scenes around the flat run differ; do nothing if no frame follows a run."""
        if self._before is None or self._after is None:
            return
        far_before, near_before = self._before
        near_after = self._contrasted[0]
        far_after = self._contrasted[-1]
        # The frames next to the run may be dimmed, so each is compared with one further away.
        correlation = max(
            best_correlation(far_before, far_after),
            best_correlation(near_before, near_after),
        )
        if correlation < SAME_SCENE:
            self.cuts.append(self._after)
        self._before = None
        self._after = None
