"""Frames by time: the one shown at an instant, whatever the frame rate, and what is refused."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import DecodeFailed, InvalidRuntime
from loader.modalities.image.crop import UPRIGHT
from loader.modalities.video.request import VideoDecoder, choose, common_span, video
from loader.modalities.video.timeline import FLOAT_SLACK_S, Timeline
from tests.refusals import refusal


def timeline(pts, time_base=Fraction(1, 1000), *, lasts=40, hidden=()):
    """Frames at these ticks, in this decode order; those in `hidden` are not shown."""
    n = len(pts)
    discard = np.isin(np.arange(n), hidden)
    shown = [p for i, p in enumerate(pts) if i not in hidden]
    return Timeline.of(np.array(pts, np.int64), np.arange(n) == 0, discard, time_base, max(shown) + lasts)


def test_frame_shown_is_the_last_that_has_begun():
    clock = timeline([0, 120, 40, 80, 1000])
    for time_s, frame in (
        (0, 0),
        (Fraction(39, 1000), 0),
        (0.04, 1),
        (0.0799, 1),
        (0.5, 3),
        (1, 4),
        (1.039, 4),
    ):
        assert clock.frame_number(time_s) == frame
    assert (clock.begin_s, clock.end_s) == (0, Fraction(1040, 1000))


@pytest.mark.parametrize("time_s", [-0.001, Fraction(-1, 10**9), Fraction(1040, 1000), 1.04, 7, 1e9])
def test_nothing_is_shown_before_the_first_frame_or_after_the_last(time_s):
    with refusal(DecodeFailed, what="time", given=time_s, accepted="from 0.000000 to 1.040000 s"):
        timeline([0, 120, 40, 80, 1000]).frame_number(time_s)


@pytest.mark.parametrize("rate", [10, 24, Fraction(30000, 1001), 30, 50, 60, 120])
def test_floats_that_were_meant_for_a_frame_find_it(rate):
    """n / rate as a float64 is below the frame's time about half of the time."""
    clock = timeline(range(20_000), 1 / Fraction(rate), lasts=1)
    below = 0
    for n in range(0, 20_000, 37):
        below += Fraction(n / float(rate)) < Fraction(n) / Fraction(rate)
        assert clock.frame_number(n / float(rate)) == n
        assert clock.frame_number(Fraction(n) / Fraction(rate)) == n
        assert n == 0 or clock.frame_number(Fraction(n) / Fraction(rate) - Fraction(1, 10**12)) == n - 1
    assert below > 50 or rate == 10 or rate == 50


def test_slack_is_for_floats_alone():
    clock = timeline([0, 40, 80])
    early = Fraction(40, 1000) - FLOAT_SLACK_S / 2
    assert clock.frame_number(float(early)) == 1
    assert clock.frame_number(early) == 0
    assert clock.frame_number(float(Fraction(40, 1000) - 2 * FLOAT_SLACK_S)) == 0


def test_hidden_frames_are_never_shown_and_time_may_begin_anywhere():
    clock = timeline([-80, -40, 0, 40], hidden=(0,))
    assert len(clock) == 3
    assert clock.frame_number(-0.04) == 0
    with pytest.raises(DecodeFailed):
        clock.frame_number(-0.08)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=30, unique=True),
    st.fractions(-2, 2, max_denominator=5000),
    st.sampled_from([Fraction(1, 1000), Fraction(1, 600), Fraction(1001, 30000)]),
)
def test_any_instant_is_what_its_definition_says(pts, time_s, time_base):
    clock = timeline(pts, time_base)
    shown = [i for i, p in enumerate(sorted(pts)) if p * time_base <= time_s]
    if not shown or time_s >= (max(pts) + 40) * time_base:
        with pytest.raises(DecodeFailed):
            clock.frame_number(time_s)
    else:
        assert clock.frame_number(time_s) == shown[-1]
    first = clock.next_frame_number(time_s)
    assert all((p * time_base >= time_s) == (i >= first) for i, p in enumerate(sorted(pts)))


NARROW = np.array([0.1, 0.2], np.float32)


def _call(at):
    return (None, 1, None, None, at, None, None)


class TestWhichFrames:
    clock = timeline([40 * n for n in range(100)])

    def test_several_times_in_any_order(self):
        decoder = video(at=[1, 0.04, Fraction(1, 25), 3.999])
        assert decoder.frames == 4
        assert decoder.choose_frames(self.clock, None) == [25, 1, 1, 99]
        assert video(at=np.array([0.0, 0.04])).choose_frames(self.clock, None) == [0, 1]
        assert video(at=np.array([0, 1])).at == (0, 1)

    def test_one_time_begins_a_clip(self):
        assert video(3, 5, at=0.1).choose_frames(self.clock, np.random.default_rng(1)) == [2, 7, 12]
        assert video(at=0).frames == 16
        with refusal(DecodeFailed, what="frames", given=100, accepted=115):
            video(at=3.97).choose_frames(self.clock, None)

    @pytest.mark.parametrize(
        ("wrong", "what", "value"),
        [
            ({"at": []}, "video()", _call([])),
            ({"at": [0.0, None]}, "video()", _call([0.0, None])),
            ({"at": np.float32(0.1)}, "video()", _call(np.float32(0.1))),
            ({"at": NARROW}, "video()", _call(NARROW)),
            ({"at": float("nan")}, "video()", _call(float("nan"))),
            ({"at": [1.0, float("inf")]}, "video()", _call([1.0, float("inf")])),
            ({"at": True}, "video()", _call(True)),
            ({"at": "0.5", "frames": 3}, "at", "0.5"),
            ({"at": [0, 1], "frames": 2}, "at", [0, 1]),
            ({"at": [0, 1], "stride": 2}, "at", [0, 1]),
            ({"at": "cam.mp4", "stride": 2}, "at", "cam.mp4"),
            ({"at": 0.5, "start": 3}, "at and start", [0.5, 3]),
            ({"at": [[0.5]]}, "video()", _call([[0.5]])),
        ],
    )
    def test_what_at_takes(self, wrong, what, value):
        with refusal(InvalidRuntime, what=what, given=value):
            video(**wrong)

    def test_follower_needs_its_sample(self):
        with refusal(InvalidRuntime, what="at", given="cam_high.mp4", accepted="a Loader"):
            video(at="cam_high.mp4")(b"")


def test_draws_are_the_documented_ones():
    """docs/order.md: a place, then y and x of a random crop, from one generator."""
    clock = timeline([40 * n for n in range(100)])
    for seed in range(20):
        mine, theirs = (np.random.Generator(np.random.Philox(key=seed)) for _ in range(2))
        decoder = video(5, 7, size=(10, 20), crop="random")
        chosen = choose({"a": decoder}, {"a": clock}, {"a": mine})["a"]
        first = int(theirs.integers(100 - 29 + 1))
        assert chosen.frames == list(range(first, first + 29, 7))
        y, x = theirs.random(), theirs.random()
        slack = 53 - 20  # 32 x 170 px to 10 high is 53 wide
        assert chosen.framing.layout((32, 170), UPRIGHT).kept == (0, int(x * (slack + 1)), 10, 20)
        assert chosen.framing.place == (y, x)


class TestTogether:
    def test_followers_show_what_is_shown_at_the_leaders_instants(self):
        timelines = {
            "a": timeline([40 * n for n in range(50)]),
            "b": timeline([100 * n for n in range(20)]),
            "c": timeline(range(60), Fraction(1001, 30000), lasts=1),
        }
        decoders = {"b": video(at="a"), "a": video(4, 3, start=5), "c": video(at="a")}
        chosen = choose(decoders, timelines, dict.fromkeys(decoders))
        assert list(chosen) == ["b", "a", "c"]
        times = [Fraction(40 * n, 1000) for n in (5, 8, 11, 14)]
        assert chosen["a"].frames == [5, 8, 11, 14]
        assert chosen["b"].frames == [int(time * 10) for time in times]
        assert chosen["c"].frames == [int(time * 30000 / 1001) for time in times]

    def test_drawn_place_is_the_leaders_alone(self):
        """The same generator gives a leader the same place with or without followers that cover it."""
        clock = timeline([40 * n for n in range(50)])
        alone = choose({"a": video(4)}, {"a": clock}, {"a": np.random.default_rng(3)})
        both = choose(
            {"a": video(4), "b": video(at="a")},
            {"a": clock, "b": clock},
            {"a": np.random.default_rng(3), "b": np.random.default_rng(4)},
        )
        assert alone["a"].frames == both["a"].frames == both["b"].frames

    def test_span_in_which_all_show_something(self):
        leader = timeline([40 * n for n in range(50)])
        assert common_span(leader, [timeline([0, 100, 1900], lasts=100)]) == (0, 50)
        assert common_span(leader, [timeline([100, 200]), timeline([50, 1000], lasts=1)]) == (3, 6)
        assert common_span(leader, [timeline([5000])]) == (50, 50)
        with refusal(DecodeFailed, what="frames", given=0, accepted=1):
            choose(
                {"a": video(1), "b": video(at="a")},
                {"a": leader, "b": timeline([5000])},
                dict.fromkeys("ab", np.random.default_rng(0)),
            )


def test_runs_hold_the_keyframe_and_join():
    """Decode order I B P of each of 5 closed groups, and one open group whose B builds on the group before."""
    pts = np.array([0, 2, 1, 3, 5, 4, 8, 6, 7, 9, 11, 10], np.int64)
    key = np.isin(np.arange(12), [0, 3, 6, 9])
    clock = Timeline.of(pts, key, np.zeros(12, np.bool_), Fraction(1, 25), 12)
    assert [tuple(run) for run in clock.runs([4])] == [(3, 6, {5: [0]})]
    assert [tuple(run) for run in clock.runs([6])] == [
        (3, 8, {7: [0]})
    ]  # shown before the keyframe before it
    assert [tuple(run) for run in clock.runs([11, 0, 11])] == [(0, 1, {0: [1]}), (9, 11, {10: [0, 2]})]
    assert [run[:2] for run in clock.runs([8, 6])] == [(3, 8)]
    assert [run[:2] for run in clock.runs(range(12))] == [(0, 12)]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(st.data())
def test_any_runs_are_what_their_definition_says(data):
    """For any order of decoding, keyframes and frames: each frame from its own keyframe on, those that touch as one."""
    n = data.draw(st.integers(1, 24))
    pts = np.array(data.draw(st.permutations(range(n))), np.int64)
    keys = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    clock = Timeline.of(pts, keys, np.zeros(n, bool), Fraction(1, 25), n)
    frames = data.draw(st.lists(st.integers(0, n - 1), max_size=8))
    numbers = [int(np.flatnonzero(pts == frame)[0]) for frame in frames]
    from_keyframes = {
        number: max((k for k in range(number + 1) if keys[k] and pts[k] <= pts[number]), default=0)
        for number in numbers
    }
    spans = []
    for number, first in sorted(from_keyframes.items()):
        while spans and first <= spans[-1][1]:
            first = min(first, spans.pop()[0])
        spans.append((first, number + 1))
    runs = clock.runs(frames)
    assert [run[:2] for run in runs] == spans
    assert {
        place: packet for run in runs for packet, places in run.positions.items() for place in places
    } == dict(enumerate(numbers))
    assert all(run.first <= packet < run.stop for run in runs for packet in run.positions)


def test_decoder_is_a_value():
    assert video(at=[0, 0.5]) == VideoDecoder(frames=2, at=(0, 0.5))
    assert hash(video(at="a.mp4", crop=None)) == hash(video(at="a.mp4"))
