"""A long sound is audited, cut and compared in the memory that a short one takes."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

from assets.media.audit import audit, audit_units
from assets.media.cutters import CUTTERS
from assets.media.policy import AudioPolicy, CutPolicy

RATE_HZ = 16_000
POLICY = CutPolicy(audio=AudioPolicy(segment_s=6))


def test_memory_does_not_grow_with_the_sound(sound_file: Callable[..., str], tmp_path: Path) -> None:
    """Of 12 s, which are three blocks, and five times as much."""
    peaks = []
    for seconds in (12, 60):
        swell = np.sin(np.arange(seconds * RATE_HZ, dtype=np.float32) / 40) * 0.1
        path = sound_file(swell, RATE_HZ, f"{seconds}.flac", codec="flac", container="flac")
        del swell
        scratch = tmp_path / f"scratch-{seconds}"
        scratch.mkdir()
        tracemalloc.start()
        row = audit(path, "audio/flac")
        units = CUTTERS["audio"].cut(path, scratch, POLICY)
        audit_units(path, "audio", units, row)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(units) == seconds // 6
    short, long = peaks
    more = (60 - 12) * RATE_HZ * 4  # bytes of float32
    assert long - short < more / 3, f"{short} bytes at most for 12 s, {long} for 60 s"
