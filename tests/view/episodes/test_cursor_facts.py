"""Texts at an episode's cursor."""

import math

import pytest

from penstock.view.episodes.cursor_facts import farthest_text, row_text, track_text
from penstock.view.episodes.lanes import Lane


@pytest.mark.parametrize(
    ("age_ns", "text"),
    [
        (None, "row 7"),
        (0, "row 7, 0 ns old"),
        (999, "row 7, 999 ns old"),
        (1500, "row 7, 1.5 µs old"),
        (34_000_000, "row 7, 34 ms old"),
        (-2_000_000, "row 7, -2 ms old"),
        (1_234_567_890, "row 7, 1,234.6 ms old"),
    ],
)
def test_age_of_a_row_has_a_unit(age_ns, text):
    assert track_text(7, is_camera=False, pts_s=None, age_ns=age_ns, is_pad=False) == text


def test_frame_tells_its_time_and_padding():
    text = track_text(28, is_camera=True, pts_s=1.166, age_ns=None, is_pad=True)
    assert text == "frame 28, pts 1.1660 s, padding"


def test_row_is_of_its_anchor_or_missing():
    assert row_text(1234, "action") == "1,234 of action"
    assert row_text(-1, "action") == "before the first"
    assert row_text(-1, "") == "no stream has rows and times"


def test_largest_distance_is_finite_and_of_a_pair():
    lanes = [
        Lane(name="arm", field="state.npy", dashed="action.npy", first=1, labels=("elbow", "wrist"), unit=""),
        Lane(name="alone", field="other.npy", dashed="", first=0, labels=("x",), unit=""),
    ]
    values = {
        "state.npy": (9.0, 1.0, 2.0),
        "action.npy": (0.0, 0.5, math.nan),
        "other.npy": (100.0,),
    }
    assert farthest_text(lanes, values) == "arm elbow -0.5"
    assert farthest_text(lanes[1:], values) == ""
