"""Timestamps of sound: gaps, overlaps, jumps and jitter."""

from collections.abc import Iterator
from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.modalities.audio.timeline import BadSound, Ends, Heard
from tests.refusals import refusal


def frames(*pieces: tuple[int | None, int], rate_hz: int = 48_000) -> Iterator[av.AudioFrame]:
    """(timestamp in samples, samples) each; sample i of the k-th says 1000 k + i, over 65536."""
    for number, (pts, n) in enumerate(pieces):
        samples = (1000 * number + np.arange(n, dtype=np.float32)) / 65536
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.sample_rate, frame.time_base, frame.pts = rate_hz, Fraction(1, rate_hz), pts
        yield frame


def lay_pieces(*pieces: tuple[int | None, int], ends: Ends | None = None) -> tuple[list[int], Heard]:
    heard = Heard(ends or Ends())
    given = [piece for frame in frames(*pieces) for piece in heard.add(frame)] + list(heard.finish())
    return np.rint(np.concatenate(given, axis=1)[0] * 65536).astype(int).tolist(), heard


def count(frame: int, n: int, start: int = 0) -> list[int]:
    return [1000 * frame + i for i in range(start, n)]


def test_gap_is_silent_and_an_overlap_is_the_later_frames() -> None:
    found, heard = lay_pieces((0, 500), (700, 500), (1200, 500), (1700, 500))
    assert found == [*count(0, 500), *[0] * 200, *count(1, 500), *count(2, 500), *count(3, 500)]
    assert (heard.n_source, heard.n_filled, heard.n_samples) == (2000, 200, 2200)
    found, heard = lay_pieces((0, 500), (300, 500), (800, 500), (1300, 500))
    assert found == [*count(0, 300), *count(1, 500), *count(2, 500), *count(3, 500)]
    assert (heard.n_overlapping, heard.n_samples) == (200, 1800)
    assert len(lay_pieces((0, 500), (900, 500))[0]) == 1000  # a single last one: nothing tells
    assert len(lay_pieces((0, 500), (1100, 500))[0]) == 1600


def test_jump_far_back_drops_the_later_samples() -> None:
    found, heard = lay_pieces((0, 500), (500, 500), (0, 500), (500, 500), (1000, 100))
    assert found == [*count(0, 500), *count(1, 500), *count(4, 100)]
    assert heard.n_overlapping == 1000


def test_single_timestamp_that_is_off_moves_nothing() -> None:
    """As FFmpeg gives them for Vorbis: by 448 samples at the start of an Ogg page."""
    found, heard = lay_pieces((0, 500), (948, 500), (1000, 500), (1500, 100))
    assert found == [*count(0, 500), *count(1, 500), *count(2, 500), *count(3, 100)]
    assert (heard.n_filled, heard.n_overlapping) == (0, 0)
    assert lay_pieces((0, 500), (500, 500), (1400, 500))[1].n_filled == 0


def test_timestamps_that_jitter_move_nothing() -> None:
    """A phone's recorder, on a grid of 20 ms: frames of 1024 samples 960 apart, and 1408 where it catches up."""
    places = [0, 960, 1920, 2880, 3840, 5248, 6208, 7168, 8128, 9088, 10496, 11456]
    found, heard = lay_pieces(*((place, 1024) for place in places))
    assert len(found) == 1024 * len(places)
    assert (heard.n_filled, heard.n_overlapping) == (0, 0)
    # A gap is one all the same.
    later = [place + 9600 * (number > 5) for number, place in enumerate(places)]
    _, heard = lay_pieces(
        *((place, 1024) for place in [*later, *(later[-1] + 1024 * n for n in range(1, 30))])
    )
    assert heard.n_filled == pytest.approx(9600, abs=400)


def test_timestamps_within_a_millisecond_are_rounded_ones() -> None:
    found, heard = lay_pieces((0, 500), (540, 500), (1000, 500), (1460, 500))
    assert (len(found), heard.n_filled, heard.n_overlapping) == (2000, 0, 0)


def test_frames_without_timestamps_follow_one_another() -> None:
    found, heard = lay_pieces((None, 500), (None, 500))
    assert (len(found), heard.start) == (1000, 0)
    assert len(lay_pieces((None, 500), (9000, 500), (9500, 500))[0]) == 1500


def test_where_no_timestamps_are_kept_they_do_not_count() -> None:
    found, heard = lay_pieces((0, 500), (10, 500), (20, 500), (9000, 500), ends=Ends(untimed=True))
    assert (len(found), heard.n_filled, heard.n_overlapping) == (2000, 0, 0)


def test_end_is_where_the_file_says() -> None:
    n = (0, 500), (500, 500)
    assert len(lay_pieces(*n, ends=Ends(n_samples=700))[0]) == 700
    assert len(lay_pieces(*n, ends=Ends(end=Fraction(600, 48_000)))[0]) == 600
    assert len(lay_pieces((4800, 500), (5300, 500), ends=Ends(end=Fraction(5300, 48_000)))[0]) == 500
    assert lay_pieces(*n, ends=Ends(n_samples=700))[1].n_padding == 300
    assert len(lay_pieces(*n, ends=Ends(n_samples=7000))[0]) == 1000
    assert len(lay_pieces((0, 9000), (9000, 500), ends=Ends(n_samples=700))[0]) == 9500  # of another file


def test_implausible_gaps_and_rates_are_refused() -> None:
    with refusal(BadSound, what="timestamps", given=3800, accepted=3600):
        lay_pieces((0, 500), (48_000 * 3800 + 600, 500), (48_000 * 3800 + 1100, 500))
    heard = Heard(Ends())
    list(heard.add(next(frames((0, 10)))))
    with refusal(BadSound, what="rate_change", given=8000, accepted=48_000):
        list(heard.add(next(frames((10, 10), rate_hz=8000))))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(60, 70_000), st.sampled_from([0, 0, 0, 0, 30, -30, 5000])),
        min_size=1,
        max_size=8,
    )
)
def test_every_sample_is_counted(steps: list[tuple[int, int]]) -> None:
    pts, pieces = 0, []
    for n, gap in steps:
        pieces.append((pts + gap, n))
        pts += n + (gap if abs(gap) > 48 else 0)
    heard = Heard(Ends())
    given = [piece for frame in frames(*pieces) for piece in heard.add(frame)] + list(heard.finish())
    n_given = sum(piece.shape[1] for piece in given)
    assert n_given == heard.n_samples
    assert n_given == heard.n_source + heard.n_filled - heard.n_overlapping - heard.n_padding
    assert all(piece.shape[1] <= 2 * 65_536 + 70_000 for piece in given)  # what is held does not grow
