"""How samples are cut: values out of range are refused, and a kind's policy is its own."""

from collections.abc import Callable
from typing import Any

import pytest

from assets.media.policy import AudioPolicy, CutPolicy, ImagePolicy, VideoPolicy
from loader.errors import InvalidSpec
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [
        (ImagePolicy, {"short_side_px": 4}),
        (ImagePolicy, {"jpeg_quality": 0}),
        (VideoPolicy, {"short_side_px": 9999}),
        (VideoPolicy, {"clip_s": 0.0}),
        (VideoPolicy, {"max_clips": 0}),
        (VideoPolicy, {"sound_rate_hz": 1}),
        (AudioPolicy, {"sample_rate_hz": 1}),
        (AudioPolicy, {"segment_s": 0.1}),
    ],
)
def test_policy_out_of_range_is_refused(policy: Callable[..., Any], wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with refusal(InvalidSpec, what=name, given=value):
        policy(**wrong)


def test_kind_depends_on_its_own_policy_only() -> None:
    before, after = CutPolicy(), CutPolicy(video=VideoPolicy(clip_s=4.0))
    assert before.of("video") != after.of("video")
    assert all(before.of(kind) == after.of(kind) for kind in ("image", "audio", "text"))
