"""Windows of episodes: each value as a search over exact fractions finds it, whoever reads them and from where on."""

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.errors import Corrupt, DecodeFailed, InvalidPlan, InvalidRuntime
from loader.modalities.video.packet_table import index_packets, packets_bytes, read_packets
from loader.run.part_reads.episode_clocks import ticks_ns
from penstock.cli import main
from penstock.denied.hashed_names import Marks
from penstock.upkeep.takedown.derived import edit_derived
from tests.refusals import refusal
from tests.run.numbered_video import read_numbers, video

NUMBERS = itertools.count()
NO_MARKS = Marks(salt="", dataset="arm", kinds=(), entry_hashes=frozenset(), denied_marks=frozenset())
SECOND = 10**9
Clock = list[int]


def episode(number: int, anchor: Clock | None, state: Clock | None, n_rows: int = 0) -> dict[str, Any]:
    """An episode whose rows hold their own numbers."""
    n, m = (len(anchor), len(state)) if anchor and state else (n_rows, n_rows)
    fields: dict[str, Any] = {
        "action.npy": np.stack([np.full(n, number), np.arange(n)], 1).astype(np.float32),
        "arm.joint.npy": np.arange(m, dtype=np.float64) * 10,
        "task.txt": f"task {number}",
    }
    if anchor and state:
        fields |= {"action.ns.npy": np.array(anchor, np.int64), "arm.ns.npy": np.array(state, np.int64)}
    return fields


@pytest.fixture
def root() -> Iterator[loader.Root]:
    with loader.Root(f"memory://windows-{next(NUMBERS)}") as opened:
        yield opened


def write_episodes(root: loader.Root, episodes: list[dict[str, Any]]) -> loader.View:
    with root.write("arm") as writer:
        for number, fields in enumerate(episodes):
            writer.add(f"ep{number}", fields)
    return root.open("arm@latest").select("action.npy", "arm.joint.npy", "task.txt")


def batches(plan: loader.Plan, **options: Any) -> loader.Loader:
    return loader.Loader(plan, framework="numpy", workers=0, **options)


def regular(n: int, start: int = 0) -> Clock:
    """A clock of 50 Hz."""
    return [start + SECOND * row // 50 for row in range(n)]


clocks = st.lists(st.integers(1, 60), min_size=1, max_size=12).flatmap(
    lambda gaps: st.integers(-40, 40).map(
        lambda start: [start + sum(gaps[: row + 1]) for row in range(len(gaps))]
    )
)


@settings(max_examples=60)
@given(
    anchor=clocks,
    state=clocks,
    offsets=st.lists(st.integers(-90, 90), min_size=1, max_size=5),
    rule=st.sampled_from(["last", "nearest", "linear"]),
    rows=st.tuples(st.integers(-3, 0), st.integers(1, 4)),
    max_age=st.none() | st.integers(0, 50),
    every=st.integers(1, 3),
)
def test_windows_are_what_a_search_finds(
    anchor: Clock,
    state: Clock,
    offsets: list[int],
    rule: str,
    rows: tuple[int, int],
    max_age: int | None,
    every: int,
) -> None:
    with loader.Root(f"memory://windows-{next(NUMBERS)}") as root:
        view = write_episodes(root, [episode(0, anchor, state)])
        windows = loader.windows(
            view,
            anchor="action.npy",
            at={"action.npy": loader.rows(*rows), "arm.joint.npy": offsets},
            rule={"arm.joint.npy": rule},
            max_age=max_age,
            every=every,
        )
        assert len(windows) == -(-len(anchor) // every)
        plan = loader.plan({"arm": windows}, seed=3, global_batch=1)
        with batches(plan, epochs=1) as read:
            seen = {int(batch["row"][0]): batch for batch in read}
    assert sorted(seen) == list(range(0, len(anchor), every))
    for row, batch in seen.items():
        assert batch["anchor_ns"][0] == anchor[row]
        chunk = range(row + rows[0], row + rows[1])
        assert batch["action.npy"][0, :, 1].tolist() == [min(max(one, 0), len(anchor) - 1) for one in chunk]
        ages = [anchor[row] - anchor[min(max(one, 0), len(anchor) - 1)] for one in chunk]
        old = [max_age is not None and age > max_age for age in ages]
        assert batch["action.npy.is_pad"][0].tolist() == [
            not 0 <= one < len(anchor) or is_old for one, is_old in zip(chunk, old, strict=True)
        ]
        for place, offset in enumerate(offsets):
            time = Fraction(anchor[row] + offset)
            at, value = find_value(time, state, rule)
            assert batch["arm.joint.npy"][0, place] == pytest.approx(float(value), abs=1e-9)
            age = time - state[at]
            assert batch["arm.joint.npy.age_ns"][0, place] == age
            distance = age
            if rule == "nearest":  # may pick a later value, whose age is below 0
                distance = abs(age)
            outside = not anchor[0] <= time <= anchor[-1] or time < state[0]
            assert batch["arm.joint.npy.is_pad"][0, place] == (
                outside or (max_age is not None and distance > max_age)
            )


def find_value(time: Fraction, clock: Clock, rule: str) -> tuple[int, Fraction]:
    """The number of the value at a time, and ten times its exact place."""
    before = [at for at, ns in enumerate(clock) if ns <= time]
    last = before[-1] if before else 0
    if rule == "nearest":
        nearest = min(range(len(clock)), key=lambda at: (abs(clock[at] - time), at))
        return nearest, Fraction(10 * nearest)
    if rule == "linear" and before and last + 1 < len(clock):
        share = (time - clock[last]) / (clock[last + 1] - clock[last])
        return last, 10 * (last + share)
    return last, Fraction(10 * last)


def test_every_row_of_every_episode_is_one_window(root: loader.Root) -> None:
    view = write_episodes(root, [episode(n, regular(7 + 5 * n), regular(30)) for n in range(6)])
    windows = loader.windows(
        view, anchor="action.npy", at={"action.npy": loader.rows(0, 4), "arm.joint.npy": [0]}
    )
    plan = loader.plan({"arm": windows}, seed=1, global_batch=8)
    with batches(plan, epochs=2) as read:
        ids = [key for batch in read for _, key in filter(None, batch.ids)]
        first, fields = read.batch_at(0), read.batch_at(0).fields
    assert Counter(ids) == {f"ep{n}@{row}": 2 for n in range(6) for row in range(7 + 5 * n)}
    assert [key for _, key in first.ids] == [
        f"ep{int(action[0, 0])}@{row}"
        for action, row in zip(first["action.npy"], first["row"].tolist(), strict=True)
    ]
    assert first["task.txt"] == [f"task {int(action[0, 0])}" for action in first["action.npy"]]
    assert fields["action.npy"].shape == (8, 4, 2)


def test_ranks_resume_and_a_saved_plan_give_the_same_digests(root: loader.Root) -> None:
    view = write_episodes(root, [episode(n, regular(9 + n), regular(40)) for n in range(9)])
    windows = loader.windows(
        view, anchor="action.npy", at={"action.npy": [0, "20ms"], "arm.joint.npy": ["-0.1s", 0]}
    )
    plan = loader.plan({"arm": windows}, seed=5, global_batch=10)

    def digests(plan: loader.Plan, world: int, first: int = 0) -> list[int]:
        sums = [0] * (12 - first)
        for rank in range(world):
            with loader.Loader(plan, rank, world, framework="numpy", workers=0, steps=12) as read:
                read.load_state_dict(plan.state(first))
                for batch in read:
                    sums[batch.step - first] = (sums[batch.step - first] + batch.digest) % 2**64
        return sums

    whole = digests(plan, 1)
    assert len(set(whole)) == 12
    assert digests(plan, 2) == digests(plan, 5) == whole
    assert digests(plan, 3, first=7) == whole[7:]
    plan.save(root)
    again = loader.open_plan(root, plan.hash)
    assert again.hash == plan.hash
    assert digests(again, 1) == whole
    other = loader.windows(view, anchor="action.npy", at={"action.npy": [0], "arm.joint.npy": ["-0.1s", 0]})
    assert other.identity == windows.identity  # what a window takes is the plan's
    assert loader.plan({"arm": other}, seed=5, global_batch=10).hash != plan.hash


def test_episodes_are_quarantined_and_found(root: loader.Root) -> None:
    view = write_episodes(root, [episode(n, regular(10), regular(10)) for n in range(4)]).where(
        "key != 'ep1'"
    )
    windows = loader.windows(view, anchor="action.npy", at={"action.npy": [0], "arm.joint.npy": [0]}, every=2)
    plan = loader.plan({"arm": windows}, seed=5, global_batch=3)
    held = plan.quarantined({"arm": ["ep2"]}, 3)
    for step in range(15):
        there = [key for _, key in plan.batch_ids(step)]
        left = [key for _, key in held.batch_ids(step)]
        assert any(key.startswith("ep2@") for key in left) == (
            step < 3 and any(k.startswith("ep2@") for k in there)
        )
        for key in set(there):
            assert step in [place.step for place in plan.steps_of("arm", key, before=15)]
            assert step in [place.step for place in plan.steps_of("arm", key.partition("@")[0], before=15)]
    assert len(plan.steps_of("arm", "ep3", before=15)) == 15
    assert [place.step for place in held.steps_of("arm", "ep2", before=15)] == [
        step for step in range(3) for _, key in plan.batch_ids(step) if key.startswith("ep2@")
    ]
    (explained,) = [one for one in loader.explain(plan, 0) if one.slot == 0]
    assert explained.address.key == plan.batch_ids(0)[0][1].partition("@")[0]


def test_plan_grows_by_the_windows_of_new_episodes(root: loader.Root) -> None:
    at: dict[str, Any] = {"action.npy": [0], "arm.joint.npy": [0]}
    view = write_episodes(root, [episode(n, regular(6 + n), regular(20)) for n in range(4)])
    plan = loader.plan({"arm": loader.windows(view, anchor="action.npy", at=at)}, seed=5, global_batch=3)
    with root.write("arm") as writer:
        for number in range(4, 7):
            writer.add(f"ep{number}", episode(number, regular(5), regular(20)))
    later = root.exclude("arm@latest", ["ep1"], reason="bad")
    grown = plan.grow({"arm": later}, 4)
    assert [grown.batch_ids(step) for step in range(4)] == [plan.batch_ids(step) for step in range(4)]
    ids = [key for step in range(4, 80) for _, key in grown.batch_ids(step)]
    assert not [key for key in ids if key.startswith("ep1@")]
    whole = {f"ep{n}@{row}" for n in (0, 2, 3) for row in range(6 + n)}
    whole |= {f"ep{n}@{row}" for n in range(4, 7) for row in range(5)}
    assert set(ids) == whole
    counts = Counter(ids[len(ids) - 5 * len(whole) :])
    assert max(counts.values()) - min(counts.values()) <= 2
    grown.save(root)
    again = loader.open_plan(root, grown.hash)
    with batches(again, steps=30) as one, batches(grown, steps=30) as other:
        assert [batch.digest for batch in one] == [batch.digest for batch in other]
    assert {place.step for place in grown.steps_of("arm", "ep5", before=40)} == {
        step for step in range(40) for _, key in grown.batch_ids(step) if key.startswith("ep5@")
    }
    with refusal(InvalidPlan, what="windows", where="source 'arm'", given=["at"]):
        plan.grow(
            {"arm": loader.windows(later.select("action.npy"), anchor="action.npy", at={"action.npy": [0]})},
            4,
        )


def test_windows_inside_an_episode_have_no_padding(root: loader.Root) -> None:
    view = write_episodes(root, [episode(n, regular(4 + 3 * n), regular(50)) for n in range(3)])
    windows = loader.windows(
        view, anchor="action.npy", at={"action.npy": loader.rows(-1, 4), "arm.joint.npy": [0]}, pad="inside"
    )
    assert len(windows) == 0 + 3 + 6
    plan = loader.plan({"arm": windows}, seed=1, global_batch=3)
    with batches(plan, epochs=1) as read:
        rows = sorted(
            (int(a[0, 0]), int(r)) for b in read for a, r in zip(b["action.npy"], b["row"], strict=True)
        )
        assert not any(b["action.npy.is_pad"].any() for b in (read.batch_at(step) for step in range(3)))
    assert rows == [(1, row) for row in range(1, 4)] + [(2, row) for row in range(1, 7)]


def test_without_clocks_rows_are_steps(root: loader.Root) -> None:
    view = write_episodes(root, [episode(n, None, None, n_rows=5) for n in range(2)])
    at = {"action.npy": loader.rows(0, 3), "arm.joint.npy": [0]}
    plan = loader.plan({"arm": loader.windows(view, anchor="action.npy", at=at)}, seed=1, global_batch=10)
    with batches(plan, steps=1) as read:
        (batch,) = read
    assert not [name for name in batch.fields if name.endswith("_ns")]
    assert (batch["arm.joint.npy"][:, 0] == 10 * batch["row"]).all()
    assert (batch["action.npy.is_pad"].sum(1) == np.maximum(0, batch["row"] - 2)).all()
    with refusal(InvalidPlan, what="at['action.npy']", where="action.npy"):
        loader.windows(view, anchor="action.npy", at={"action.npy": ["20ms"], "arm.joint.npy": [0]})


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"at": {"action.npy": [0.02]}}, {"what": "at['action.npy']", "given": 0.02}),
        ({"at": {"action.npy": ["20 minutes"]}}, {"what": "at['action.npy']", "given": "20 minutes"}),
        ({"at": {"action.npy": [Fraction(1, 30)]}}, {"what": "at['action.npy']", "given": "Fraction(1, 30)"}),
        ({"at": {"action.npy": ["99999999999s"]}}, {"what": "at['action.npy']", "given": "99999999999s"}),
        ({"at": {}}, {"what": "at", "given": "{}"}),
        (
            {"at": {"state.npy": [0]}},
            {"what": "at", "given": "state.npy", "accepted": ["action.npy", "arm.joint.npy", "task.txt"]},
        ),
        ({"at": {"task.txt": [0]}}, {"what": "at", "given": "task.txt", "accepted": "arrays and videos"}),
        ({"at": {"action.npy": [0]}, "anchor": "task.txt"}, {"what": "anchor", "given": "task.txt"}),
        (
            {"at": {"action.npy": [0]}, "rule": {"action.npy": "first"}},
            {"what": "rule['action.npy']", "given": "first"},
        ),
        (
            {"at": {"action.npy": loader.rows(0, 2)}, "rule": {"action.npy": "linear"}},
            {"what": "rule['action.npy']", "given": "linear", "accepted": "times in at="},
        ),
        ({"at": {"action.npy": ["1ms"]}, "pad": "inside"}, {"what": "pad", "given": "inside"}),
        ({"at": {"action.npy": [0]}, "pad": "wrap"}, {"what": "pad", "given": "wrap"}),
        ({"at": {"action.npy": [0]}, "every": 0}, {"what": "windows: every", "given": 0}),
    ],
)
def test_wrong_words_are_refused(
    root: loader.Root, options: dict[str, Any], fault: dict[str, object]
) -> None:
    view = write_episodes(root, [episode(0, regular(5), regular(5))])
    with refusal(InvalidPlan, **fault):
        loader.windows(view, **{"anchor": "action.npy", **options})


def test_times_are_exact() -> None:
    assert loader.times("-1s", 0, "250ms").values == (-SECOND, -750_000_000, -500_000_000, -250_000_000)
    assert loader.times(0, Fraction(1, 10), Fraction(1, 20)).values == (0, 50_000_000)
    assert loader.rows(-2, 3, 2).values == (-2, 0, 2)
    assert loader.times("1.5us", "2us", 250).values == (1500, 1750)


def test_padding_of_ranks_and_quarantine_meet_no_episode(root: loader.Root) -> None:
    view = write_episodes(root, [episode(n, regular(10), regular(10)) for n in range(4)]).where(
        "key != 'ep1'"
    )
    windows = loader.windows(view, anchor="action.npy", at={"action.npy": [0], "arm.joint.npy": [0]})
    plan = loader.plan({"arm": windows}, seed=1, global_batch=8, boundary="mask").quarantined(
        {"arm": ["ep3"]}, 0
    )
    assert not plan.stack([3], 3, 4).slots.valid.any()
    ids = [key for step in range(4) for _, key in plan.batch_ids(step) if key]
    assert len(ids) == 30
    assert not [key for key in ids if key.startswith("ep3@")]


def test_windows_of_other_episodes_have_other_names(root: loader.Root) -> None:
    view = write_episodes(root, [episode(n, regular(10), regular(10)) for n in range(3)])
    at: dict[str, Any] = {"action.npy": [0], "arm.joint.npy": [0]}
    one, other = (loader.windows(view.where(f"key != 'ep{n}'"), anchor="action.npy", at=at) for n in (1, 2))
    assert one.table_sha256 == other.table_sha256
    assert one.identity != other.identity


def test_rows_of_another_width_are_named(root: loader.Root) -> None:
    half = episode(1, regular(10), regular(10))
    half["action.npy"] = half["action.npy"].astype(np.float16)
    view = write_episodes(root, [episode(0, regular(10), regular(10)), half])
    windows = loader.windows(view, anchor="action.npy", at={"action.npy": [0], "arm.joint.npy": [0]})
    plan = loader.plan({"arm": windows}, seed=1, global_batch=15)
    with (
        batches(plan, on_corrupt="raise") as read,
        refusal(DecodeFailed, what="action.npy", given=10, accepted="rows of 5 windows"),
    ):
        next(iter(read))


def test_rows_that_are_too_old_are_padding(root: loader.Root) -> None:
    view = write_episodes(root, [episode(0, regular(6), [0])])
    at: dict[str, Any] = {"action.npy": loader.rows(-1, 1), "arm.joint.npy": loader.rows(0, 1)}
    windows = loader.windows(view, anchor="action.npy", at=at, max_age="19ms")
    plan = loader.plan({"arm": windows}, seed=1, global_batch=6)
    with batches(plan, steps=1) as read:
        (batch,) = read
    assert batch["action.npy.is_pad"].tolist() == [[True, False]] * 6
    assert batch["arm.joint.npy.is_pad"][:, 0].tolist() == [row > 0 for row in batch["row"].tolist()]


@pytest.mark.parametrize("pad", ["mask", "inside"])
def test_nearest_value_is_padding_by_its_distance_to_either_side(root: loader.Root, pad: str) -> None:
    """The state has times at 0 and 10 s only: nearest to 6 s and 9 s is the later one, 4 s and 1 s ahead."""
    anchor = [0, SECOND, 6 * SECOND, 9 * SECOND, 10 * SECOND]
    view = write_episodes(root, [episode(0, anchor, [0, 10 * SECOND])])
    windows = loader.windows(
        view,
        anchor="action.npy",
        at={"action.npy": loader.rows(0, 1), "arm.joint.npy": [0]},
        rule={"arm.joint.npy": "nearest"},
        pad=pad,
        max_age="1s",
    )
    plan = loader.plan({"arm": windows}, seed=1, global_batch=5)
    with batches(plan, steps=1, on_corrupt="raise") as read:
        (batch,) = read
    order = np.argsort(batch["row"])
    assert batch["arm.joint.npy"][order, 0].tolist() == [0, 0, 10, 10, 10]
    ages = batch["arm.joint.npy.age_ns"][order, 0]
    assert ages.tolist() == [0, SECOND, -4 * SECOND, -SECOND, 0]
    assert batch["arm.joint.npy.is_pad"][order, 0].tolist() == [False, False, True, False, False]


def test_rows_ahead_are_padding_for_no_age(root: loader.Root) -> None:
    """A chunk of actions names rows: those ahead have ages below 0, however far."""
    view = write_episodes(root, [episode(0, regular(6), regular(6))])
    at: dict[str, Any] = {"action.npy": loader.rows(0, 3), "arm.joint.npy": loader.rows(0, 3)}
    windows = loader.windows(view, anchor="action.npy", at=at, pad="inside", max_age="1ms")
    plan = loader.plan({"arm": windows}, seed=1, global_batch=4)
    with batches(plan, steps=1, on_corrupt="raise") as read:
        (batch,) = read
    assert batch["action.npy.age_ns"].min() < -1_000_000
    assert not batch["action.npy.is_pad"].any()
    assert not batch["arm.joint.npy.is_pad"].any()


def test_clock_that_goes_back_is_named(root: loader.Root) -> None:
    clock = regular(6)
    clock[4] = clock[3]
    view = write_episodes(root, [episode(0, clock, regular(6))])
    windows = loader.windows(view, anchor="action.npy", at={"action.npy": [0], "arm.joint.npy": [0]})
    plan = loader.plan({"arm": windows}, seed=1, global_batch=2)
    with (
        batches(plan, on_corrupt="raise") as read,
        refusal(DecodeFailed, what="row 4", within="'ep0' field 'action.ns.npy'"),
    ):
        next(iter(read))


def test_episodes_without_whole_rows_are_named(root: loader.Root) -> None:
    with root.write("bare") as writer:
        writer.add("ep0", {"action.npy": np.zeros((3, 2), np.float32)})
        writer.add("ep1", {"action.npy": np.zeros((0, 2), np.float32)})
    with refusal(InvalidPlan, what="action.npy", where="episode 'ep1'"):
        loader.windows(root.open("bare@1"), anchor="action.npy", at={"action.npy": [0]})


def test_table_is_stored_once_and_proved(tmp_path: Path) -> None:
    with loader.Root(str(tmp_path)) as root:
        view = write_episodes(root, [episode(n, regular(5), regular(5)) for n in range(3)])
        windows = loader.windows(view, anchor="action.npy", at={"action.npy": [0], "arm.joint.npy": [0]})
        plan = loader.plan({"arm": windows}, seed=1, global_batch=2)
        plan.save(root)
        (table,) = tmp_path.glob("windows/*.parquet")
        key = f"windows/{table.name}"
        other = loader.windows(view.where("key != 'ep0'"), anchor="action.npy", at={"action.npy": [0]})
        assert len(other) == 10
        records = [root.record("arm@1")]
        loader.norm(windows, ["action.npy"])
        (norm,) = root.store.list("norms/")
        assert {key, norm.key} <= {*edit_derived(root.store, records, NO_MARKS).remade}
        before = table.stat().st_mtime_ns
        loader.windows(view, anchor="action.npy", at={"action.npy": [0]})
        assert table.stat().st_mtime_ns == before
        rows = pq.read_table(table)
        edited = pa.table({"first": [0, 5, 10, 14]}).replace_schema_metadata(rows.schema.metadata)
        pq.write_table(edited, table)
        with refusal(Corrupt, what="content of the table"):
            loader.windows(view, anchor="action.npy", at={"action.npy": [0]})


def test_cameras_of_several_rates_show_the_frame_of_their_time(root: loader.Root) -> None:
    times = {"a.mp4": [40 * n for n in range(30)], "b.mp4": [7 + 33 * n + n % 3 for n in range(36)]}
    clips = {name: video(len(pts), pts=pts) for name, pts in times.items()}
    anchor = [SECOND * row // 30 for row in range(36)]
    with root.write("arm") as writer:
        tables = {f"{name}.packets": index_packets(data) for name, data in clips.items()}
        writer.add("ep0", {"action.npy": np.arange(36), "action.ns.npy": np.array(anchor), **clips, **tables})
    view = root.open("arm@1").select("a.mp4", "b.mp4", "action.npy")
    at: dict[str, Any] = {"a.mp4": ["-80ms", 0], "b.mp4": [0], "action.npy": [0]}
    windows = loader.windows(view, anchor="action.npy", at=at, rule={"b.mp4": "nearest"})
    plan = loader.plan({"arm": windows}, seed=1, global_batch=6)
    with batches(plan, epochs=1) as read:
        for batch in read:
            for slot, ns in enumerate(batch["anchor_ns"].tolist()):
                a = [
                    max([n for n, t in enumerate(times["a.mp4"]) if t * 10**6 <= ns + d] or [0])
                    for d in (-80 * 10**6, 0)
                ]
                b = min(range(36), key=lambda n: (abs(times["b.mp4"][n] * 10**6 - ns), n))
                assert read_numbers(batch["a.mp4"][slot]) == a
                assert read_numbers(batch["b.mp4"][slot]) == [b]
                assert batch["a.mp4.age_ns"][slot].tolist() == [
                    ns + d - times["a.mp4"][n] * 10**6 for d, n in zip((-80 * 10**6, 0), a, strict=True)
                ]
                shown = [ns - 80 * 10**6 >= 0, ns < 1200 * 10**6]
                assert batch["a.mp4.is_pad"][slot].tolist() == [not one for one in shown]
    with refusal(
        InvalidRuntime,
        what="decode['a.mp4']",
        given=loader.video(frames=4, stride=1),
        accepted="no frames, stride, start or at",
    ):
        batches(plan, decode={"a.mp4": loader.video(frames=4)})
    with refusal(InvalidPlan, what="at", given=["a.mp4", "action.npy"], accepted="also the video 'b.mp4'"):
        loader.windows(view, anchor="action.npy", at={"a.mp4": [0], "action.npy": [0]})


def test_real_episodes_show_frame_k_at_row_k(tmp_path: Path) -> None:
    folder = os.environ.get("PENSTOCK_MEDIA")
    if not folder:
        return
    source = f"{folder}/robot/g1_lerobot_v21"
    assert main(["import", "lerobot", source, "g1", "--root", str(tmp_path), "--episodes", "29"]) == 0
    camera = "observation.images.cam_high.mp4"
    with loader.Root(str(tmp_path)) as root:
        view = root.open("g1@1").select(camera, "observation.state.npy", "action.npy")
        at: dict[str, Any] = {camera: [0], "observation.state.npy": [0], "action.npy": loader.rows(0, 50)}
        windows = loader.windows(view, anchor="action.npy", at=at, every=10)
        plan = loader.plan({"g1": windows}, seed=1, global_batch=4)
        whole = root.open("g1@1")[0]
        frames = loader.video(frames=len(whole["action.npy"]), start=0, size=(48, 64))(whole[camera], None)
        rows = []
        with batches(plan, epochs=1, decode={camera: loader.video(size=(48, 64))}) as read:
            for batch in read:
                for slot in np.flatnonzero(batch.mask).tolist():
                    row = int(batch["row"][slot])
                    rows.append(row)
                    assert (batch[camera][slot, 0] == frames[row]).all()
                    assert (
                        batch["observation.state.npy"][slot, 0] == whole["observation.state.npy"][row]
                    ).all()
                    assert 0 <= batch[f"{camera}.age_ns"][slot, 0] < 10**5
    assert sorted(rows) == list(range(0, len(frames), 10))


def test_steps_of_a_window_has_the_substitutes_of_a_run(root: loader.Root) -> None:
    clips = {name: video(20) for name in ("a", "b", "c")}
    damaged = bytearray(clips["b"])
    damaged[1000:3000] = bytes(2000)
    anchor = np.array(regular(20))
    with root.write("arm") as writer:
        for name, clip in clips.items():
            table = read_packets(index_packets(clip))
            if name == "b":  # its packets cannot be read one by one, and the file is damaged
                facts = replace(table.facts, whole_because="a test", crc32c=crc32c(bytes(damaged)))
                table, clip = replace(table, facts=facts), bytes(damaged)
            fields = {"action.npy": np.arange(20), "action.ns.npy": anchor}
            writer.add(name, {**fields, "cam.mp4": clip, "cam.mp4.packets": packets_bytes(table)})
    view = root.open("arm@1").select("cam.mp4", "action.npy")
    windows = loader.windows(view, anchor="action.npy", at={"cam.mp4": [0], "action.npy": [0]})
    plan = loader.plan({"arm": windows}, seed=1, global_batch=6)
    with batches(plan, steps=20, corrupt_budget=1.0) as read:
        delivered = list(read)
    substitutions = [entry for batch in delivered for entry in batch.substitutions]
    assert len(delivered) == 20
    assert {entry.address.key for entry in substitutions} == {"b"}
    held: dict[str, list[tuple[int, int]]] = {}
    for batch in delivered:
        for slot, (_, key) in enumerate(batch.ids):
            held.setdefault(key, []).append((batch.step, slot))

    assert len(held) > 20
    for key, places in held.items():
        places_read = plan.steps_of("arm", key, before=20, substitutions=substitutions)
        assert [(place.step, place.slot) for place in places_read] == places, key

    for name in "abc":
        places_read = plan.steps_of("arm", name, before=20, substitutions=substitutions)
        own = sorted(place for key, places in held.items() if key.startswith(f"{name}@") for place in places)
        assert [(place.step, place.slot) for place in places_read] == own


@pytest.mark.parametrize(
    "base", [Fraction(1, 1000), Fraction(1001, 30000), Fraction(1, 2**31 - 1), Fraction(2**31 - 1, 1)]
)
def test_times_of_any_base_are_floored(base: Fraction) -> None:
    """Also of bases that no encoder writes, and of ticks beyond int64 in between."""
    ticks = [0, 1, -1, 7, 512, 2**31, 2**40 + 3, -(2**40), 2**62, -(2**62)]
    exact = [min(max((tick * base * SECOND).__floor__(), -(2**62)), 2**62) for tick in ticks]
    assert ticks_ns(np.array(ticks), base).tolist() == exact
    assert ticks_ns(np.array(ticks[:6]), base).tolist() == exact[:6]
