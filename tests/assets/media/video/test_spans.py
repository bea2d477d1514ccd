"""Which stretches become clips."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from assets.media.container import PacketIndex
from assets.media.policy import VideoPolicy
from assets.media.segments import Segment
from assets.media.unit import Unusable
from assets.media.video.spans import segment_spans, shots, spread
from tests.refusals import refusal


def index(start: int = 0, end: int = 10_000) -> PacketIndex:
    return PacketIndex(n_packets=1, start_pts=start, end_pts=end, time_base=(1, 1000), max_gop_frames=1)


POLICY = VideoPolicy(units="shots", clip_s=2.0, min_clip_s=0.5, max_clips=None)


@settings(max_examples=100, derandomize=True, deadline=None)
@for_all(
    st.lists(st.integers(0, 20_000), max_size=12), st.integers(-500, 500), st.integers(600, 20_000), st.data()
)
def test_clips_stay_within_their_shot(cuts: list[int], start: int, length: int, data: st.DataObject) -> None:
    cuts = sorted(set(cuts))
    video = index(start, start + length)
    n_clips = data.draw(st.none() | st.integers(1, 5))
    policy = VideoPolicy(units="shots", clip_s=2.0, max_clips=n_clips)
    bounds = [start, *(cut for cut in cuts if start < cut < start + length), start + length]
    if max(end - begin for begin, end in pairwise(bounds)) < 500:
        with refusal(Unusable, what="short_shots", accepted=0.5):
            shots(video, policy, cuts)
        return
    found = shots(video, policy, cuts)
    assert found.n_shots == len(bounds) - 1
    before = start
    for span in found.spans:
        assert span.shot is not None
        assert bounds[span.shot] <= span.start < span.end <= bounds[span.shot + 1]
        assert 500 <= span.end - span.start <= 2000
        assert span.start >= before
        before = span.end
    if n_clips is None:  # what is left out is too short, piece by piece
        taken = sum(span.end - span.start for span in found.spans)
        assert length - taken < 500 * max(1, found.n_short)
        assert (found.n_short == 0) == (taken == length)
    else:
        assert len(found.spans) <= n_clips


def test_shots_by_hand() -> None:
    found = shots(index(end=6_000), POLICY, [300, 2_900])
    assert [(span.start, span.end, span.shot) for span in found.spans] == [
        (300, 2_300, 1),
        (2_300, 2_900, 1),
        (2_900, 4_900, 2),
        (4_900, 6_000, 2),
    ]
    assert (found.n_shots, found.n_short) == (3, 1)


def test_given_segments_are_those_that_are_given() -> None:
    segments = [
        Segment(start_s=0.1, end_s=0.3),
        Segment(start_s=0.2, end_s=9.0, label="a", caption="b"),
    ]
    spans = segment_spans(index(start=40_000, end=49_000), segments)
    assert [(span.start, span.end) for span in spans] == [(40_100, 40_300), (40_200, 49_000)]
    assert [span.segment for span in spans] == segments


def test_tenth_of_a_second_is_a_tenth() -> None:
    """0.1 as a float64 is a little more: a frame at exactly a tenth would be left out."""
    video = PacketIndex(n_packets=1, start_pts=0, end_pts=10**15, time_base=(1, 10**15), max_gop_frames=1)
    (span,) = segment_spans(video, [Segment(start_s=0.1, end_s=0.3)])
    assert Fraction(span.start, 10**15) == Fraction(1, 10)


@pytest.mark.parametrize(
    ("start_s", "end_s", "expected"),
    [(9.5, 10.9, (9_500, 10_000)), (9.5, 11.2, None), (10.0, 10.5, None), (12.0, 14.0, None)],
)
def test_segment_outside_of_the_video_is_refused(
    start_s: float, end_s: float, expected: tuple[int, int] | None
) -> None:
    segments = [Segment(start_s=start_s, end_s=end_s)]
    if expected is not None:  # who wrote it down rounded to whole seconds
        (span,) = segment_spans(index(), segments)
        assert (span.start, span.end) == expected
        return
    with refusal(Unusable, what="segment", given=[start_s, end_s], accepted=10.0) as refused:
        segment_spans(index(), segments)
    assert (refused.value.outcome, refused.value.code) == ("rejected", "segment")


def test_video_that_the_table_does_not_name_is_dropped() -> None:
    with pytest.raises(Unusable) as refused:
        segment_spans(index(), [])
    assert (refused.value.outcome, refused.value.code) == ("dropped", "no_segments")


@pytest.mark.parametrize(
    ("n_possible", "n_wanted", "expected"),
    [(10, 3, [0, 3, 6]), (3, 10, [0, 1, 2]), (4, None, [0, 1, 2, 3]), (5, 5, [0, 1, 2, 3, 4]), (7, 1, [0])],
)
def test_spread(n_possible: int, n_wanted: int | None, expected: list[int]) -> None:
    assert spread(n_possible, n_wanted) == expected
