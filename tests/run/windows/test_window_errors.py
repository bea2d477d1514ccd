"""Each error of windows names the field, the value, what is accepted, and what to do."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import loader
from loader.errors import DecodeFailed, FieldMismatch, InvalidPlan, TransformFailed
from loader.modalities.video.packet_table import index_packets
from loader.order.sources.window_layout import WindowLayout
from tests.refusals import refusal
from tests.run.numbered_video import video

NUMBERS = itertools.count()
MS = 10**6


@pytest.fixture
def root() -> Iterator[loader.Root]:
    with loader.Root(f"memory://window-errors-{next(NUMBERS)}") as opened:
        yield opened


def write_version(root: loader.Root, name: str, *episodes: dict[str, Any]) -> loader.Version:
    with root.write(name) as writer:
        for number, fields in enumerate(episodes):
            writer.add(f"ep{number}", fields)
    return root.open(f"{name}@latest")


def steps(n: int, width: int = 2) -> dict[str, Any]:
    return {"action.npy": np.zeros((n, width), np.float32)}


def timed_steps(n: int) -> dict[str, Any]:
    return steps(n) | {"action.ns.npy": np.arange(n) * 100 * MS}


def camera_episode(n: int, first_ms: int, n_frames: int) -> dict[str, Any]:
    """An episode of 10 Hz, with a camera of its own times."""
    clip = video(n_frames, pts=[first_ms + 100 * frame for frame in range(n_frames)])
    return timed_steps(n) | {"cam_left.mp4": clip, "cam_left.mp4.packets": index_packets(clip)}


def windows(view: loader.Version | loader.View, **options: Any) -> Any:
    return loader.windows(view, **{"anchor": "action.npy", "at": {"action.npy": loader.rows(0, 1)}} | options)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (
            {"at": {"action.npy": [0.02]}},
            ("at['action.npy']", "0.02 is no time", "'20ms'", "use loader.rows"),
        ),
        (
            {"at": {"action.npy": ["20ms"]}},
            ("at['action.npy'] has times", "its rows are steps", "use loader.rows"),
        ),
        ({"max_age": "20ms"}, ("max_age", "'action.npy' has no clock", "values have no age")),
        (
            {"rule": {"action.npy": "nearest"}},
            ("rule['action.npy'] = 'nearest'", "at='action.npy' names rows, which have no rule"),
        ),
        (
            {"at": {"cam.mp4": [0]}, "rule": {"cam.mp4": "linear"}},
            ("rule['cam.mp4'] = 'linear'", "frames are not mixed", "use 'nearest'"),
        ),
        (
            {"at": {"action.npy": [10 * MS]}, "pad": "inside"},
            ("pad='inside' counts rows", "by loader.rows", "pad='mask'"),
        ),
    ],
)
def test_plan_that_cannot_be_is_refused(
    root: loader.Root, options: dict[str, Any], parts: tuple[str, ...]
) -> None:
    version = write_version(root, "arm", steps(5) | {"cam.mp4": b"x"})
    view = version.select("action.npy", *(options.get("at", {}).keys() - {"action.npy"}))
    with pytest.raises(InvalidPlan) as refused:
        windows(view, **options)
    for part in parts:
        assert part in str(refused.value)


def test_stored_plan_with_times_of_steps_is_refused(root: loader.Root) -> None:
    view = write_version(root, "arm", steps(5)).select("action.npy")
    body = windows(view).layout.to_json() | {"at": {"action.npy": {"ns": [5]}}}
    plan = loader.plan({"arm": view.windowed(WindowLayout.from_json(body))}, seed=1, global_batch=2)
    with refusal(InvalidPlan, what="at['action.npy']", where="action.npy"):
        loader.Loader(plan, framework="numpy", workers=0)


def test_episodes_without_rows_of_the_anchor_are_named(root: loader.Root) -> None:
    version = write_version(root, "arm", steps(5), steps(0), steps(4), steps(0))
    with pytest.raises(InvalidPlan) as refused:
        windows(version)
    said = str(refused.value)
    assert "2 episodes have no whole rows of 'action.npy'" in said
    assert {*re.findall(r"ep\d", said)} == {"ep1", "ep3"}
    assert "leave them out with where()" in said
    assert len(windows(version.where("key NOT IN ('ep1', 'ep3')"))) == 9


def test_keep_of_another_length_is_named(root: loader.Root) -> None:
    version = write_version(root, "arm", steps(5) | {"keep.npy": np.ones(4, bool)})
    with refusal(InvalidPlan, what="keep", given=["'ep0' (bool [4], and 5 rows)"]):
        windows(version.select("action.npy"), keep="keep.npy")


@pytest.mark.parametrize(
    ("first_ms", "n_frames", "message"),
    [
        (
            0,
            36,
            "cam_left.mp4 shows nothing at 3.6 s: it ends 0.3 s before action.npy; filter by clock_skew_ns",
        ),
        (
            300,
            60,
            "cam_left.mp4 shows nothing at 0.2 s: it begins 0.3 s after action.npy; filter by clock_skew_ns",
        ),
    ],
    ids=["ends", "begins"],
)
def test_camera_that_shows_nothing_is_one_bad_sample(
    root: loader.Root, first_ms: int, n_frames: int, message: str
) -> None:
    version = write_version(root, "arm", camera_episode(40, first_ms, n_frames), camera_episode(40, 0, 60))
    at: dict[str, Any] = {"cam_left.mp4": [0], "action.npy": loader.rows(0, 1)}
    view = version.select(*at)
    inside = windows(view, at=at, pad="inside")
    plan = loader.plan({"arm": inside}, seed=1, global_batch=4)
    decode = {"cam_left.mp4": loader.video(size=(8, 8))}
    how: dict[str, Any] = {"framework": "numpy", "workers": 0, "decode": decode, "epochs": 1}
    with (
        loader.Loader(plan, **how, on_corrupt="raise") as read,
        pytest.raises(DecodeFailed) as failed,
    ):
        list(read)
    assert 'use pad="mask"' in str(failed.value)
    assert re.search(r"cam_left\.mp4 shows nothing at [\d.]+ s: it (ends|begins) 0\.3 s", str(failed.value))
    n_bad = 4 if n_frames == 36 else 3
    with loader.Loader(plan, **how, on_corrupt="substitute", corrupt_budget=1.0) as read:
        delivered = list(read)
    assert sum(len(batch.substitutions) for batch in delivered) >= n_bad
    said = [one.error for batch in delivered for one in batch.substitutions]
    assert any(message in str(one) for one in said)
    assert not any(batch["cam_left.mp4.is_pad"].any() for batch in delivered)
    masked = loader.plan({"arm": windows(view, at=at)}, seed=1, global_batch=4)
    with loader.Loader(masked, **how) as read:
        assert sum(int(batch["cam_left.mp4.is_pad"].sum()) for batch in read) == n_bad


def test_rows_of_another_stream_that_are_missing_are_named(root: loader.Root) -> None:
    version = write_version(root, "arm", steps(5) | {"state.npy": np.zeros((4, 1))})
    at = {"action.npy": loader.rows(0, 1), "state.npy": loader.rows(0, 1)}
    plan = loader.plan({"arm": windows(version, at=at, pad="inside")}, seed=1, global_batch=5)
    with (
        loader.Loader(plan, framework="numpy", workers=0, on_corrupt="raise") as read,
        refusal(DecodeFailed, what="row 4", within="'ep0': state.npy") as failed,
    ):
        next(read)
    assert 'use pad="mask"' in str(failed.value)


def test_another_embodiment_is_refused(root: loader.Root) -> None:
    arm = windows(write_version(root, "arm", steps(5)))
    hand = windows(write_version(root, "hand", steps(5, width=7)))
    plan = loader.plan({"hand": hand}, seed=1, global_batch=2)
    scale = loader.normalise(loader.norm(arm, ["action.npy"]))
    with (
        loader.Loader(plan, framework="numpy", workers=0, transform=scale, steps=1) as read,
        refusal(TransformFailed, given="FieldMismatch", within="sample 'ep") as failed,
    ):
        next(read)
    with refusal(FieldMismatch, what="action.npy", given=[1, 7], accepted=[2]):
        raise failed.value.__cause__
