"""What the detector of shots says is settled does not change any more, whatever comes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.media.video.shots import SMALL_PX, ShotDetector

WIDTH, HEIGHT = SMALL_PX


def film(parts: list[tuple[str, int]], seed: int) -> np.ndarray:
    """uint8 [n, 36, 64]: scenes of some frames each, with what is between them."""
    rng = np.random.default_rng(seed)
    frames: list[np.ndarray] = []

    def scene() -> np.ndarray:
        return np.kron(rng.integers(0, 256, (9, 16)), np.ones((4, 4))).astype(float)

    now = scene()
    for change, length in parts:
        frames += [now + rng.normal(0, 1, now.shape) for _ in range(length)]
        following = scene()
        if change == "dissolve":
            frames += [now + (following - now) * step / 17 for step in range(1, 17)]
        elif change == "slow":
            frames += [now + (following - now) * step / 61 for step in range(1, 61)]
        elif change == "fade":
            frames += [now * (1 - step / 8) for step in range(8)] + [np.zeros_like(now)] * 5
            frames += [following * step / 8 for step in range(8)]
        elif change == "flash":
            frames += [np.full_like(now, 250.0)] * 2
            following = now
        elif change == "mixed":
            frames += [now * 0.5 + scene() * 0.5 for _ in range(length % 9)]
        now = following
    return np.clip(np.stack(frames), 0, 255).astype(np.uint8)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(["cut", "dissolve", "slow", "fade", "flash", "mixed"]), st.integers(1, 60)),
        min_size=1,
        max_size=8,
    ),
    seed=st.integers(0, 100),
    piece=st.integers(1, 70),
)
def test_settled_is_settled(parts: list[tuple[str, int]], seed: int, piece: int) -> None:
    frames = film(parts, seed)
    detector = ShotDetector()
    told = []
    for start in range(0, len(frames), piece):
        some = frames[start : start + piece]
        detector.feed(some, list(range(start, start + len(some))))
        told.append(detector.final_boundaries())
    final = detector.finish()
    for cuts, front in told:
        assert cuts == [pts for pts in final if front is not None and pts < front]
    fronts = [-1 if front is None else front for _, front in told]
    assert fronts == sorted(fronts)
    assert len(frames) - fronts[-1] <= 130 or {"mixed", "slow"} & dict(parts).keys()  # not far behind
