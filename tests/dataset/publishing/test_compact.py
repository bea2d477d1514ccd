"""Lists of tables stay short, whatever was published before; what a version holds does not change by it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from benchmarks.scale import publish
from loader.dataset.publishing import compaction
from loader.dataset.publishing.compaction import FAN_IN, MOST_BYTES, SIZES, choose_merge
from loader.dataset.publishing.publication_gate import NewKeys
from loader.dataset.writing.run_samples import RunKeys
from loader.errors import DuplicateKey
from penstock.upkeep.diff import column_statistics
from penstock.upkeep.verify.version import verify

LISTS = ("shards", "samples", "stats", "exclusions", "key_hashes")


# which tables become one


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([3000, 9000, 60_000, 500_000, 3_000_000, 20_000_000]), max_size=200))
def test_lists_stay_short_and_rows_are_rewritten_a_few_times(sizes):
    """A publish at a time, merged as `compact_lists` does; a merged table is as large as what it is made of."""
    files, written = [], 0
    for nbytes in sizes:
        files.append(nbytes)
        which = choose_merge(files)
        if merged := files[which]:
            assert len(merged) > 1
            assert sum(merged) <= MOST_BYTES
            assert max(merged) < SIZES[-1]
            files[which], written = [sum(merged)], written + sum(merged)
    small = [nbytes for nbytes in files if nbytes < SIZES[-1]]
    for below, level in zip(SIZES, range(4), strict=True):
        large = [number for number, nbytes in enumerate(files) if nbytes >= below]
        assert len(files) - max([-1, *large]) - 1 <= (FAN_IN - 1) * (level + 1) + 1
    assert len(small) <= 4 * FAN_IN * (1 + len(files) - len(small))
    # Tables below 32 KiB are merged again and again until they are that large; the others once per level.
    assert written <= 6 * sum(sizes) + len(sizes) * SIZES[0]


@pytest.mark.parametrize("nbytes", [1000, 40_000, 3_000_000])
def test_ten_thousand_publishes_leave_some_tens_of_tables(nbytes):
    files = []
    for _ in range(10_000):
        files.append(nbytes)
        which = choose_merge(files)
        files[which] = [sum(files[which])] if files[which] else []
    assert sum(one < SIZES[-1] for one in files) <= 4 * FAN_IN
    assert len(files) <= 4 * FAN_IN + 10_000 * nbytes // SIZES[-1]


# what a version holds


def grow(root, runs, properties):
    """Publishes, groups and exclusions; the content and statistics that each version must have for ever."""
    seen = []
    for run in range(runs):
        with root.write("d", part_samples=2) as writer:
            for i in range(3):
                metadata = {"w": run + i, "s": "xy"[i % 2]} if run % 3 else {"w": run / 2}
                writer.add(f"r{run}-{i}", {"x": b"%d" % run}, metadata=metadata)
        if run % 4 == 1:
            root.exclude("d", [f"r{run}-1"], reason="blurred")
        if run % 5 == 2:
            root.add_group("d", "g", {"t.txt": lambda sample: sample["x"].decode()})
        if run % 5 in (0, 4):
            version = root.open("d")
            frame = version.samples().collect()
            seen.append(
                (version.id, properties.content(version), frame.to_dicts(), column_statistics(version))
            )
    return seen


@pytest.mark.parametrize("most_bytes", [MOST_BYTES, 16_000])
def test_merged_tables_hold_what_the_many_held(url, properties, monkeypatch, most_bytes):
    """most_bytes: below it the oldest of many are merged alone, and the newer ones stay behind them."""
    many, few = loader.Root(f"{url}/many"), loader.Root(f"{url}/few")
    monkeypatch.setattr(compaction, "MOST_BYTES", most_bytes)
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "choose_merge", lambda nbytes: slice(0, 0))
        expected = grow(many, 16, properties)
    found = grow(few, 16, properties)
    long, short = many.open("d").manifest, few.open("d").manifest
    assert most_bytes < MOST_BYTES or all(len(short[name]) <= 16 for name in LISTS)
    assert len(long["shards"]) > 18
    for (_, content, rows, stats), (id, content_, rows_, stats_) in zip(expected, found, strict=True):
        assert content_ == content
        assert [{**row, "part": None} for row in rows_] == [{**row, "part": None} for row in rows]
        assert stats_ == stats
        # The version as it was: its manifest names the tables from before they were merged.
        assert properties.content(few.open(id)) == content
    assert {**short, "n": 0}["groups"] == long["groups"]
    assert verify(few, "d", full=True).problems == []


def test_annotations_keep_their_place_between_runs(root):
    """The statistics of an annotation stand for all before them: no run that comes later goes before them."""
    for run in range(40):
        with root.write("d") as writer:
            writer.add(f"k{run}", {"x": b"1"}, metadata={"w": run})
        if run in (11, 26):
            root.annotate("d", f"better{run}", [{"key": f"k{run - 10}", "w": 1000 + run}], author="ann")
    manifest = root.open("d").manifest
    assert len(manifest["stats"]) < 30
    assert verify(root, "d", full=True).problems == []
    w = column_statistics(root.open("d"))["w"]
    assert (w["n"], w["max"]) == (40, 1026.0)


def test_plan_grows_over_merged_tables(root, properties):
    grow(root, 3, properties)
    old = root.open("d").select("x")
    grown = [f"later{i}" for i in range(12)]
    for key in grown:
        with root.write("d") as writer:
            writer.add(key, {"x": b"1"}, metadata={"w": 1})
    root.exclude("d", ["r0-0"], reason="blurred")
    new = root.open("d").select("x")
    before, after = old.version.manifest["shards"], new.version.manifest["shards"]
    assert after[: len(before)] != before
    delta = new.since(old)
    assert old.version.keys(delta.removed) == ["r0-0"]
    assert sorted(delta.view.keys(delta.view.version_ordinals(np.arange(12)))) == sorted(grown)


def test_publish_that_is_overtaken_merges_again(root, properties):
    """Eight runs are there; both would merge them. The later one lies on what the earlier one made of it."""
    for run in range(7):
        with root.write("d") as writer:
            writer.add(f"k{run}", {"x": b"1"})
    mine = loader.write_part(root, root.begin("d"), [("mine", {"x": b"1"})])

    def overtake():
        with loader.Root(root.url).write("d") as writer:
            writer.add("theirs", {"x": b"1"})

    version = properties.overtaken(root, mine, overtake)
    assert sorted(properties.content(version)) == sorted(["mine", "theirs", *(f"k{i}" for i in range(7))])
    assert len(version.manifest["shards"]) <= 2
    assert [verify(root, f"d@{n}", full=True).problems for n in (8, 9)] == [[], []]


# counted


@pytest.mark.parametrize("n", [24, pytest.param(96, marks=pytest.mark.nightly)])
def test_publishing_does_not_grow_with_what_was_published(root, stores, n):
    """Mean requests and bytes of a publish onto `n` earlier ones: the same, but for one more level of tables."""
    for run in range(n):
        publish(root, 5 * run, 5)
    store = stores.Counting(root.store)
    again = loader.Root(root.url)
    again._use(store)
    again.state  # noqa: B018
    store.calls.clear()
    store.nbytes = 0
    for run in range(16):
        publish(again, 5 * (n + run), 5)
    assert store.under("data") / 16 < 60
    assert store.nbytes / 16 < 400_000
    manifest = again.open("d").manifest
    assert all(len(manifest[name]) <= 40 for name in LISTS)
    check = NewKeys(root.store, RunKeys.of(["sample/000000000"]))
    with pytest.raises(DuplicateKey):
        check(again.open("d"))
