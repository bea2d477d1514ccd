"""Skew, gaps, frozen frames and idle rows against a brute-force search; and `keep.npy` from a recipe to windows."""

import os
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from assets.features.compute import feature_kind, part_inputs
from assets.featurizers import Features, make
from assets.media.unit import Unusable
from assets.testing.featurizers import npy
from loader.errors import InvalidSpec
from loader.modalities import encode
from loader.modalities.video.packet_table import index_packets, packets_bytes, read_packets
from penstock.cli import main
from tests.penstock.formats.exchange.test_robot_logs import import_log, write_json
from tests.refusals import ABSENT, refusal
from tests.run.numbered_video import video

MS = 10**6
clocks = st.lists(st.integers(1, 90), max_size=25).map(
    lambda steps: np.cumsum([0, *steps]).astype(np.int64) * 10 * MS
)


def features(fields: dict[str, Any], **parameters: Any) -> Features:
    stored = {name: one if isinstance(one, bytes) else npy(np.asarray(one)) for name, one in fields.items()}
    return make("episode_sync", **parameters)("episode", stored)


def idle_rows(rows: np.ndarray, clock: np.ndarray | None, still: float, long: int) -> list[bool]:
    """Rows that end a stretch of at least `long` ns (or rows) in which no dimension leaves its band."""
    exact = [[Fraction(float(one)) for one in row] for row in rows]
    band = Fraction(still) * max(max(dim) - min(dim) for dim in zip(*exact, strict=True))
    at = list(range(len(rows))) if clock is None else clock.tolist()
    idle = [False] * len(rows)
    for start in range(len(rows)):
        stop = next((row for row in range(start, len(rows)) if at[row] - at[start] >= long), None)
        if stop is None:
            continue
        if all(max(dim) - min(dim) <= band for dim in zip(*exact[start : stop + 1], strict=True)):
            idle[start + 1 : stop + 1] = [True] * (stop - start)
    return idle


@settings(max_examples=150)
@given(data=st.data(), clock=clocks, timed=st.booleans(), still=st.sampled_from([0.0, 0.125, 0.5]))
def test_idle_rows_are_those_of_a_search(
    data: st.DataObject, clock: np.ndarray, timed: bool, still: float
) -> None:
    n = len(clock)
    shape = st.lists(st.lists(st.integers(-8, 8), min_size=2, max_size=2), min_size=n, max_size=n)
    rows = np.array(data.draw(shape), np.float32)
    rows = np.repeat(rows, 4, axis=0)[:n]  # so that some stand still
    fields: dict[str, Any] = {"action.npy": rows} | ({"action.ns.npy": clock} if timed else {})
    made = features(fields, still=still, idle_ms=400, idle_rows=5)
    idle = idle_rows(rows, clock if timed else None, still, 400 * MS if timed else 5)
    assert made.fields["keep.npy"].tolist() == [not one for one in idle]
    assert made.columns["idle_ratio"] == round(sum(idle) / n, 6)


@settings(max_examples=60)
@given(anchor=clocks, other=clocks, start=st.integers(-500, 500))
def test_skew_and_gaps_are_those_of_a_search(anchor: np.ndarray, other: np.ndarray, start: int) -> None:
    other = other + start * MS
    columns = features(
        {"action.npy": np.zeros((len(anchor), 1)), "action.ns.npy": anchor, "joint.ns.npy": other}
    ).columns
    ends = [abs(int(a) - int(b)) for a, b in ((anchor[0], other[0]), (anchor[-1], other[-1]))]
    gaps = []
    for clock in (anchor.tolist(), other.tolist()):
        steps = [after - before for before, after in pairwise(clock)]
        ordered = sorted(steps)
        middle = Fraction(ordered[(len(steps) - 1) // 2] + ordered[len(steps) // 2], 2) if steps else 0
        gaps += [step for step in steps if step > 3 * middle]
    assert columns["clock_skew_ns"] == max(ends)
    assert (columns["n_gaps"], columns["longest_gap_ns"]) == (len(gaps), max(gaps, default=0))


def test_cameras_count_by_their_packets() -> None:
    clock = np.arange(20) * 40 * MS
    pts = [40 * n for n in range(12)] + [40 * n for n in range(17, 20)]
    table = read_packets(index_packets(video(len(pts), pts=pts)))
    fields: dict[str, Any] = {"action.npy": np.arange(20.0), "action.ns.npy": clock}
    columns = features(fields | {"cam.mp4.packets": packets_bytes(table)}).columns
    assert (columns["n_gaps"], columns["longest_gap_ns"]) == (1, 240 * MS)
    assert (columns["clock_skew_ns"], columns["n_frozen"]) == (0, 0)
    order, crc, size = np.argsort(table.pts), table.crc32c.copy(), table.size.copy()
    size[order[[3, 4, 5, 8, 9]]], crc[order[[3, 4, 5, 8, 9]]] = 10, [1, 1, 1, 2, 2]
    frozen = {"cam.mp4.packets": packets_bytes(replace(table, crc32c=crc, size=size))}
    assert features(fields | frozen).columns["n_frozen"] == 3
    late = {
        "cam.ns.npy": np.arange(len(pts)) * 40 * MS + 90 * MS
    }  # its own clock counts, and not its packets
    assert features(fields | frozen | late).columns["n_gaps"] == 0
    assert features(fields | frozen | late).columns["clock_skew_ns"] == 110 * MS


def test_fact_names_the_clock_of_a_camera_and_of_the_anchor() -> None:
    clock, rows = np.arange(20) * 40 * MS, np.zeros((20, 1))
    late = [40 * n + 30 for n in range(20)]
    packets = packets_bytes(read_packets(index_packets(video(20, pts=late))))
    fields = {"action.npy": npy(rows), "times.npy": npy(clock), "cam.mp4.packets": packets}
    sync = make("episode_sync", idle_ms=400)
    facts = {"cam.mp4": {"clock": "times.npy", "fps": "25"}, "action.npy": {"clock": "times.npy"}}
    timed = sync.of_fields(facts)
    assert timed.version == sync.version
    assert timed.inputs["episode"] == ("action.npy", "*.ns.npy", "*.packets", "times.npy")
    both = timed("episode", fields)
    assert (both.columns["clock_skew_ns"], both.columns["n_gaps"]) == (0, 0)  # frame k is row k
    assert both.columns["idle_ratio"] == round(19 / 20, 6)
    anchor = sync.of_fields({"action.npy": facts["action.npy"]})("episode", fields)
    assert anchor.columns["clock_skew_ns"] == 30 * MS  # the container's own times
    steps = sync("episode", fields)
    assert (steps.columns["clock_skew_ns"], steps.columns["idle_ratio"]) == (None, round(19 / 20, 6))


def test_clocks_from_end_to_end_fit_a_column() -> None:
    far = np.array([-(2**62), -(2**62) + 1, -(2**62) + 2, 2**62])
    columns = features(
        {"action.npy": np.zeros(2), "action.ns.npy": np.array([2**62 - 1, 2**62]), "b.ns.npy": far}
    ).columns
    assert (columns["clock_skew_ns"], columns["n_gaps"]) == (2**63 - 1, 1)
    assert columns["longest_gap_ns"] == 2**63 - 2


def test_steps_have_no_skew() -> None:
    columns = features({"action.npy": np.zeros((40, 2), np.float32), "cam.ns.npy": np.arange(7)}).columns
    assert [columns[name] for name in ("clock_skew_ns", "n_gaps", "longest_gap_ns")] == [None] * 3
    assert columns["idle_ratio"] == round(39 / 40, 6)


@pytest.mark.parametrize(
    ("fields", "code", "where", "given"),
    [
        ({"action.npy": np.zeros((0, 2))}, "no_rows", "action.npy", [0, 2]),
        ({"action.npy": np.float32(1)}, "no_rows", "action.npy", []),
        ({"action.npy": np.array(["a"])}, "not_numbers", "action.npy", "<U1"),
        ({"action.ns.npy": np.arange(3)}, "missing_field", "action.npy", ABSENT),
        (
            {"action.npy": np.zeros(3), "action.ns.npy": np.array([0, 5, 5])},
            "clock",
            "action.ns.npy",
            5,
        ),
        ({"action.npy": np.zeros(3), "action.ns.npy": np.arange(2)}, "clock", "action.ns.npy", ["int64", 2]),
        (
            {"action.npy": np.zeros(3), "action.ns.npy": np.arange(3.0)},
            "clock",
            "action.ns.npy",
            ["float64", 3],
        ),
        (
            {"action.npy": np.zeros(2), "action.ns.npy": np.arange(2), "b.ns.npy": np.int64(3)},
            "clock",
            "b.ns.npy",
            ["int64"],
        ),
        (
            {"action.npy": np.zeros(2), "cam.mp4.packets": b"no table"},
            "undecodable",
            "cam.mp4.packets",
            ABSENT,
        ),
    ],
)
def test_what_is_no_episode_is_rejected(fields: dict[str, Any], code: str, where: str, given: object) -> None:
    with refusal(Unusable, what=code, where=where, given=given) as refused:
        features(fields)
    assert (refused.value.outcome, refused.value.stage) == ("rejected", "featurize")


def test_infinite_value_widens_no_band() -> None:
    rows = np.random.default_rng(3).normal(0, 1, (60, 2))
    rows[30, 0] = np.inf
    assert features({"action.npy": rows}).columns["idle_ratio"] == 0.0


def test_values_that_are_not_finite_move() -> None:
    rows = np.zeros((40, 2))
    rows[20] = np.nan, np.inf
    assert features({"action.npy": rows}, idle_rows=10).fields["keep.npy"].tolist() == [
        row in (0, 20, 21) for row in range(40)
    ]


@pytest.mark.parametrize(
    "wrong", [{"still": 1.0}, {"still": -0.1}, {"idle_ms": 0}, {"idle_rows": 0}, {"gap": 1.0}]
)
def test_parameters_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    settings = {"still": 0.02, "idle_ms": 500, "idle_rows": 15, "gap": 3.0} | wrong
    with refusal(
        InvalidSpec,
        what="still, idle_ms, idle_rows and gap",
        where="episode_sync",
        given=tuple(settings.values()),
    ):
        make("episode_sync", **wrong)


def test_log_is_measured_by_its_topics(tmp_path: Path) -> None:
    joints = [("arm/joints", row * 20 * MS, {"position": [min(row, 100) / 10, 0.0]}) for row in range(200)]
    lamp = [
        ("lamp", 300 * MS + row * 100 * MS, {"on": row % 2}) for row in range(36) if row not in (9, 10, 11)
    ]
    write_json(tmp_path / "in" / "a.mcap", sorted(joints + lamp, key=lambda row: row[1]))
    assert import_log(tmp_path / "in", tmp_path / "root", "mcap").failures == []
    with loader.Root(str(tmp_path / "root")) as root:
        sample = root.open("log")[0]
        names = [name for name in sample if name.endswith(".ns.npy") or name == "arm.joints.position.npy"]
        made = features({name: sample[name] for name in names}, episode="arm.joints.position.npy")
        assert dict(made.columns) == {
            "clock_skew_ns": 300 * MS,
            "n_gaps": 1,
            "longest_gap_ns": 400 * MS,
            "idle_ratio": 0.505,
            "n_frozen": 0,
        }
        # From row 98 on the joint is within 2 % of its range, and row 98 is not idle.
        assert made.fields["keep.npy"].tolist() == [row < 99 for row in range(200)]


def write_episode(root: loader.Root, fields: dict[str, Any]) -> loader.Part:
    return loader.write_part(root, root.begin("arm"), [("ep0", fields)])


def test_only_episodes_are_taken_as_episodes() -> None:
    sync, phash = make("episode_sync"), make("phash")
    clip = {"mp4": b"x", "action.npy": np.zeros(2)}
    steps = {"action.npy": np.zeros(2), "cam.mp4": b"x"}
    log = {"joint.ns.npy": np.arange(2), "joint.npy": np.zeros(2), "cam.mp4": b"x", "cam.mp4.packets": b"x"}
    with loader.Root("memory://episode-kinds") as root:
        for fields, kind in ((clip, "video"), (steps, "episode"), (log, "episode")):
            part = write_episode(root, fields)
            assert feature_kind(sync, "video", part) == kind
            assert feature_kind(phash, "video", part) == "video"  # cameras stay what they were
            assert part_inputs(phash, "video", part) == {"mp4": "mp4" if "mp4" in fields else "cam.mp4"}
        assert part_inputs(sync, "episode", part) == {
            "joint.ns.npy": "joint.ns.npy",
            "cam.mp4.packets": "cam.mp4.packets",
        }
        assert part_inputs(sync, "video", part) == {}


def test_real_episodes_are_measured_and_windows_follow(tmp_path: Path) -> None:
    folder = os.environ.get("PENSTOCK_MEDIA")
    if not folder:
        return
    source = f"{folder}/robot/g1_lerobot_v21"
    assert main(["import", "lerobot", source, "g1", "--root", str(tmp_path), "--episodes", "24,29"]) == 0
    with loader.Root(str(tmp_path)) as root:
        sync = make("episode_sync", still=0.1).of_fields(root.open("g1@1").facts)

    def keep(sample: Any) -> np.ndarray:
        names = [name for name in sample if name == "action.npy" or name.endswith((".ns.npy", ".packets"))]
        stored = {name: encode(name, sample[name]) for name in names}
        value: np.ndarray = sync("episode", stored).fields["keep.npy"]
        return value

    with loader.Root(str(tmp_path)) as root:
        before, objects = root.open("g1@1"), {info.key: info.etag for info in root.store.list("data/")}
        version = root.add_group("g1@1", "episode_sync", {"keep.npy": keep})
        after = {info.key: info.etag for info in root.store.list("data/")}
        assert objects.items() <= after.items()  # no media is written again
        rows = {one: len(before[one]["action.npy"]) for one in range(2)}
        kept = {one: int(version[one]["keep.npy"].sum()) for one in range(2)}
        assert sum(kept.values()) < sum(rows.values())
        windows = loader.windows(
            version.select("action.npy"), anchor="action.npy", at={"action.npy": [0]}, keep="keep.npy"
        )
        assert len(windows) == sum(kept.values())
