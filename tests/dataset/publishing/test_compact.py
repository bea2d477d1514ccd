"""Lists of tables stay short, whatever was published before; what a version holds does not change by it."""

import itertools
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.api.explain import provenance
from loader.dataset.publishing import compact
from loader.dataset.publishing.commit import NewKeys
from loader.dataset.publishing.compact import FAN_IN, MOST_BYTES, SIZES, compacted, to_merge
from loader.dataset.shards import key_hashes
from loader.dataset.shards.key_hashes import hashes_of, known, put_hashes
from loader.dataset.shards.parts_table import PartsTable, ShardRows
from loader.dataset.tables.parquet import TableFile, get_table, put_named_table, table_bytes
from loader.errors import Corrupt, DuplicateKey
from loader.storage import open_store
from penstock.diff import column_statistics
from penstock.verify.version import check_version, verify

LISTS = ("shards", "samples", "stats", "exclusions", "key_hashes")
_numbers = itertools.count()


def fresh():
    return loader.Root(f"memory://compact-{next(_numbers)}")


# which tables become one


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([3000, 9000, 60_000, 500_000, 3_000_000, 20_000_000]), max_size=200))
def test_lists_stay_short_and_rows_are_rewritten_a_few_times(sizes):
    """A publish at a time, merged as `compacted` does; a merged table is as large as what it is made of."""
    files, written = [], 0
    for nbytes in sizes:
        files.append(nbytes)
        which = to_merge(files)
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
        which = to_merge(files)
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
def test_merged_tables_hold_what_the_many_held(properties, monkeypatch, most_bytes):
    """most_bytes: below it the oldest of many are merged alone, and the newer ones stay behind them."""
    many, few = fresh(), fresh()
    monkeypatch.setattr(compact, "MOST_BYTES", most_bytes)
    with monkeypatch.context() as patch:
        patch.setattr(compact, "to_merge", lambda nbytes: slice(0, 0))
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


def test_annotations_keep_their_place_between_runs():
    """The statistics of an annotation stand for all before them: no run that comes later goes before them."""
    root = fresh()
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


def test_a_plan_grows_over_merged_tables(properties):
    root = fresh()
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


# the order of the parts


def in_order(version):
    """Tables and shards say the same of each sample, and what lies in one folder is of one run."""
    assert check_version(version, full=False, seen=set()).problems == []
    frame = version.samples().select("key", "no").collect()
    assert frame["key"].to_list() == version.keys(np.arange(len(version)))
    assert all(key.startswith(f"{no}-") for key, no in frame.rows())
    folders = [
        file["path"].rpartition("/")[0] for file in version.manifest["samples"] if file["group"] == "keys"
    ]
    assert len(set(folders)) == len(folders)
    assert column_statistics(version)["no"]["n"] == version.manifest["n_rows"]


@pytest.mark.parametrize("seed", range(2))
def test_keys_stay_in_the_order_of_the_parts(monkeypatch, seed):
    """Publishes of any size, with groups, labels, exclusions and better copies between them. Merges take the oldest of
    too many tables, so that those of the publish itself stay beside what it merged."""
    monkeypatch.setattr(compact, "SIZES", (14_000, 20_000))
    monkeypatch.setattr(compact, "MOST_BYTES", 40_000)
    root, rng = fresh(), np.random.default_rng(seed)
    partial = 0
    for run in range(24):
        n = int(rng.integers(1, 40))
        supersede = {}
        if run % 7 == 6:
            supersede = {root.open("d").keys(np.array([0]))[0]: "a better one came"}
        rows = [(f"{run}-{i}", {"x": b"%d" % i}, {"no": run, "s": rng.bytes(16).hex()}) for i in range(n)]
        txn = root.begin("d")
        half = -(-n // 2)
        parts = [loader.write_part(root, txn, some) for some in (rows[:half], rows[half:]) if some]
        version = root.publish("d", parts, supersede=supersede)
        in_order(version)
        merged = [
            file["path"] for file in version.manifest["samples"] if version.manifest["txn"] in file["path"]
        ]
        partial += len(merged) > 2 and not merged[-1].split("/")[2].endswith("-merged")
        if run % 9 == 4:
            in_order(root.exclude("d", [f"{run}-0"], reason="blurred") if n > 1 else version)
        if run % 11 == 5:
            root.add_group("d", "g", {"t.txt": lambda sample: sample["x"].decode()})
        if run == 20:
            root.annotate("d", "labels", [{"key": f"{run}-{n - 1}", "label": "cat"}], author="ann")
    assert partial > 1
    assert verify(root, "d", full=True).problems == []


def test_a_merge_out_of_the_order_of_parts_is_refused(monkeypatch):
    """Whatever puts it there: nothing is published."""
    monkeypatch.setattr(compact, "to_merge", lambda nbytes: slice(0, 2 if len(nbytes) > 3 else 0))
    monkeypatch.setattr(
        compact,
        "_replaced",
        lambda files, gone, merged: [*(file for file in files if file["path"] not in gone), *merged],
    )
    root = fresh()
    for run in range(3):
        fake_publish(root, run)
    with pytest.raises(Corrupt, match="out of the order of the parts; nothing was published"):
        fake_publish(root, 3)
    assert len(root.open("d")) == 15


def shared_folders(version):
    """Folders that keys tables of several runs lie in."""
    files = [file for file in version.manifest["samples"] if file["group"] == "keys"]
    found = Counter(file["path"].rpartition("/")[0] for file in files)
    return [folder for folder, n in found.items() if n > 1]


def as_earlier_releases_merged(patch):
    """Into the publisher's own folder, in which its own run may stay as it is."""
    patch.setattr(compact, "SIZES", (14_000, 20_000))
    patch.setattr(compact, "MOST_BYTES", 40_000)
    for name in ("_merge_samples", "_merge_stats"):
        patch.setattr(compact, name, _beside(getattr(compact, name)))


def _beside(merge):
    return lambda store, prefix, *args: merge(store, prefix.removesuffix("-merged"), *args)


def test_runs_that_share_a_folder_are_left_alone(monkeypatch):
    """The statistics of both would be taken for those of each."""
    root = fresh()
    with monkeypatch.context() as patch:
        as_earlier_releases_merged(patch)
        for run in range(24):
            with root.write("d") as writer:
                writer.add(f"{run}-0", {"x": b"1"}, metadata={"no": run})
            if shared := shared_folders(root.open("d")):
                break
    assert len(shared) == 1
    for later in range(run + 1, run + 20):
        with root.write("d") as writer:
            writer.add(f"{later}-0", {"x": b"1"}, metadata={"no": later})
    version = root.open("d")
    assert shared_folders(version) == shared
    assert len(version.manifest["samples"]) < 40
    assert verify(root, "d", full=True).problems == []


def disorder(store, prefix, body, done):
    """As an earlier release left it: a table of several runs before one that lies among them."""
    body = compacted(store, prefix, body, done)
    if body["parent"] and len(body["shards"]) == 4:
        keys, rest = (
            [file for file in body["samples"] if (file["group"] == "keys") is is_keys]
            for is_keys in (True, False)
        )
        tables = [get_table(store, TableFile.from_json(file)) for file in (keys[1], keys[3])]
        table = pa.concat_tables(tables)
        file = {**keys[1], **put_named_table(store, prefix, table, "samples-keys").to_json()}
        body = {**body, "samples": [keys[0], file, keys[2], *rest]}
    return body


def test_what_an_earlier_release_put_out_of_order_is_read_in_order(monkeypatch, caplog):
    """By whoever asks for samples; verify names it, and a child is read as well."""
    root = fresh()
    monkeypatch.setattr("loader.dataset.publishing.commit.compacted", disorder)
    for run in range(4):
        with root.write("d", part_samples=2) as writer:
            for i in range(3):
                writer.add(
                    f"{run}-{i}", {"x": b"1"}, metadata={"no": run}, source={"raw_uri": f"s3://b/{run}-{i}"}
                )
    monkeypatch.undo()
    root.exclude("d", ["1-1", "3-0"], reason="blurred")
    with root.write("d") as writer:
        writer.add("4-0", {"x": b"1"}, metadata={"no": 4})
    for ref in ("d@4", "d@5", "d@6"):
        version = root.open(ref)
        frame = version.samples().collect()
        assert frame["key"].to_list() == version.keys(np.arange(len(version)))
        assert frame["key"].to_list() == [
            f"{no}-{key[2:]}" for no, key in zip(frame["no"], frame["key"], strict=True)
        ]
        view = version.where("no = 3").select("x")
        found = view.keys(view.version_ordinals(np.arange(len(view))))
        assert sorted(found) == [f"3-{i}" for i in range(3) if ref == "d@4" or i]
        with pytest.raises(Corrupt, match=f"its provenance is not told: run penstock verify {ref}"):
            provenance(version, version.address(np.arange(len(version)), ["x"]))
        assert "out of the order of parts" in verify(root, ref).problems[0].what
    assert "d@4: an earlier release left its keys tables out of the order" in caplog.text


def test_keys_that_are_not_those_of_the_parts_are_refused(monkeypatch):
    """A table twice and another not at all: there is no order to put them in."""
    root = fresh()

    def twice(store, prefix, body, done):
        keys = [file for file in body["samples"] if file["group"] == "keys"]
        return {**body, "samples": [keys[0]] * len(keys)}

    monkeypatch.setattr("loader.dataset.publishing.commit.compacted", twice)
    for run in range(2):
        with root.write("d") as writer:
            writer.add(f"k{run}", {"x": b"1"})
    with pytest.raises(
        Corrupt, match="2 rows, which are not the 2 of its parts, each once; run penstock verify d@2"
    ):
        root.open("d").samples()


# publishers at once


def test_a_publish_that_is_overtaken_merges_again(properties):
    """Eight runs are there; both would merge them. The later one lies on what the earlier one made of it."""
    root = fresh()
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


# keys


def table_of(store, n, seed=0):
    hashes = np.random.default_rng(seed).integers(0, 2**63, n)
    return hashes, put_hashes(store, "data/t/a", hashes)


def test_hashes_are_those_of_the_sketches():
    from loader.dataset.tables.stats import bottom_k

    keys = [f"k{i}" for i in range(50)]
    assert sorted(hashes_of(keys).tolist()) == bottom_k(keys)
    assert hashes_of([]).tolist() == []


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    table=st.lists(st.integers(0, 60), max_size=80),
    asked=st.lists(st.integers(0, 60), max_size=20),
    rows=st.integers(1, 9),
)
def test_known_is_membership(table, asked, rows):
    """Whole, and by row groups that repeat a value over their border."""
    store = open_store(f"memory://compact-{next(_numbers)}")
    asked = np.array(sorted(asked), np.int64)
    for whole in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(key_hashes, "ROW_GROUP_ROWS", rows)
            patch.setattr(key_hashes, "WHOLE_BELOW_BYTES", 2**20 if whole else 0)
            patch.setattr(key_hashes, "TAIL_BYTES", 0)
            file = put_hashes(store, f"data/t/{whole}", np.array(table, np.int64))
            if whole or file["nbytes"] > 65536:
                (found,) = known(store, [file], asked)
                assert found.tolist() == [one in set(table) for one in asked.tolist()]


@pytest.mark.parametrize("n", [200_000, 800_000])
def test_new_keys_read_the_row_groups_they_fall_into(stores, n):
    """Of a large table: the footer and a stretch per key, whatever its size. 20 keys among 200,000 and 800,000."""
    store = stores.Counting(open_store(f"memory://compact-{next(_numbers)}"))
    hashes, file = table_of(store, n)
    asked = np.sort(np.random.default_rng(1).integers(0, 2**63, 20))
    store.calls.clear()
    assert known(store, [file], asked)[0].sum() == 0
    assert store.calls == {("get_range", "data"): 1, ("get_ranges", "data"): 1}
    assert store.nbytes < 70_000  # the footer
    some = np.sort(np.append(asked, hashes[[0, n // 2, n - 1]]))
    (found,) = known(store, [file], some)
    assert set(some[found].tolist()) == set(hashes[[0, n // 2, n - 1]].tolist())


def test_a_damaged_table_of_hashes_is_named():
    store = open_store(f"memory://compact-{next(_numbers)}")
    _, file = table_of(store, 200_000)
    good = store.get(file["path"]).data
    earlier = {name: value for name, value in file.items() if name != "footer_sha256"}
    asked = np.sort(np.random.default_rng(0).integers(0, 2**63, 2000))
    for at in (5000, len(good) - 20):
        store.put(file["path"], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        for one in (file, earlier):
            with pytest.raises(Corrupt, match=file["path"]):
                known(store, [one], asked)


def test_a_table_of_other_hashes_with_the_checksum_of_the_first_is_refused():
    """By its SHA-256, though nobody reads all of it; those of earlier releases have a CRC-32C alone."""
    store = open_store(f"memory://compact-{next(_numbers)}")
    _, file = table_of(store, 200_000)
    hashes, other = table_of(store, 200_000, seed=1)
    store.put(file["path"], store.get(other["path"]).data)
    forged = {**file, **{name: other[name] for name in ("nbytes", "footer_nbytes", "footer_crc32c")}}
    asked = np.sort(hashes[:5])
    with pytest.raises(Corrupt, match="its footer has SHA-256"):
        known(store, [forged], asked)
    del forged["footer_sha256"]
    assert known(store, [forged], asked)[0].all()


def test_a_dataset_of_an_older_release_gets_its_hashes(monkeypatch, properties):
    """Its manifests have none: keys are compared, and the next publish leaves the hashes of all."""
    root = fresh()
    with monkeypatch.context() as patch:
        patch.setattr(compact, "compacted", None)
        patch.setattr(
            "loader.dataset.publishing.commit.compacted", lambda store, prefix, body, done: older(body)
        )
        for run in range(3):
            with root.write("d") as writer:
                writer.add(f"k{run}", {"x": b"1"})
        assert "key_hashes" not in root.open("d").manifest
    with pytest.raises(DuplicateKey, match="'k1' is already"), root.write("d") as writer:
        writer.add("k1", {"x": b"1"})
    with root.write("d") as writer:
        writer.add("new", {"x": b"1"})
    manifest = root.open("d").manifest
    assert sum(file["n_rows"] for file in manifest["key_hashes"]) == manifest["n_rows"] == 4
    with pytest.raises(DuplicateKey, match="'k1' is already"), root.write("d") as writer:
        writer.add("k1", {"x": b"1"})
    assert verify(root, "d", full=True).problems == []


def older(body):
    return {name: value for name, value in body.items() if name != "key_hashes"}


def test_two_keys_of_one_hash_are_two_keys(monkeypatch):
    """A hash that is there proves nothing."""
    monkeypatch.setattr(
        "loader.dataset.publishing.commit.hashes_of", lambda keys: np.zeros(len(keys), np.int64)
    )
    monkeypatch.setattr(
        "loader.dataset.writing.run_tables.hashes_of", lambda keys: np.zeros(len(keys), np.int64)
    )
    root = fresh()
    for key in ("a", "b", "c"):
        with root.write("d") as writer:
            writer.add(key, {"x": b"1"})
    assert len(root.open("d")) == 3
    with pytest.raises(DuplicateKey, match="'b' is already"), root.write("d") as writer:
        writer.add("b", {"x": b"1"})


# a million shards


def shards(parts, groups):
    columns = {"part": parts, "group": groups, "n_rows": pa.array([3] * len(parts), pa.int64())}
    columns["path"] = [f"{part}-{group}" for part, group in zip(parts, groups, strict=True)]
    return pa.table(columns)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.sets(st.sampled_from("abc"), min_size=1), min_size=1, max_size=9), st.booleans(), st.data()
)
def test_parts_are_told_with_and_without_hashing_them(layout, added, data):
    """Shards of a part side by side, and those of a group that came later behind all, in whatever order."""
    rows = [(f"p{i}", group) for i, groups in enumerate(layout) for group in sorted(groups)]
    later = [(f"p{i}", "g") for i in data.draw(st.permutations(range(len(layout))))] if added else []
    tables = [shards(*zip(*some, strict=True)) for some in (rows, later) if some]
    files = [(f"t{i}", table_bytes(table, "shards", row_group_rows=2)) for i, table in enumerate(tables)]
    table = PartsTable(ShardRows(files), [], "test@1")
    assert table.ids.to_pylist() == [f"p{i}" for i in range(len(layout))]
    for i, groups in enumerate(layout):
        for group in "abcg":
            there = group in groups or (group == "g" and added)
            assert bool(table.has_group(group)[i]) == there
            if there:
                assert table.shard(group, i)["path"] == f"p{i}-{group}"


def test_rows_are_decoded_as_they_are_asked_for(monkeypatch):
    monkeypatch.setattr("loader.dataset.shards.parts_table.KEPT_ROWS", 10)
    table = shards([f"p{i}" for i in range(50)], ["g"] * 50)
    rows = ShardRows([("t", table_bytes(table, "shards", row_group_rows=4))])
    assert len(rows) == 50
    for at in (0, 49, 3, 4, 49, 0):
        assert rows.row(at)["part"] == f"p{at}"
        assert sum(one.num_rows for one in rows._kept.values()) <= 10
    assert rows.columns("path")["path"].to_pylist() == table["path"].to_pylist()
    with pytest.raises(Corrupt, match="t is not a readable shards table"):
        ShardRows([("t", b"PAR1 nothing PAR1")])


@pytest.mark.parametrize("n", [48, 480])
@pytest.mark.parametrize("groups", [["g"], ["a", "b", "c"]])
def test_names_of_parts_are_decoded_when_they_are_asked_for(monkeypatch, n, groups):
    """What opening decodes of n shards: of each its group and its rows, and its name where parts have several; of one
    that is asked for its row group, whatever there are."""
    decoded = Counter()

    def read(self, number, group, names=None):
        table = _read_group(self, number, group, names)
        decoded.update(dict.fromkeys(names or ["all"], table.num_rows))
        return table

    _read_group = ShardRows._read_group
    monkeypatch.setattr(ShardRows, "_read_group", read)
    parts = [f"p{i // len(groups)}" for i in range(n)]
    table = shards(parts, groups * (n // len(groups)))
    rows = ShardRows([("t", table_bytes(table, "shards", row_group_rows=4))])
    made = PartsTable(rows, [], "test@1")
    assert decoded == {"group": n, "n_rows": n} | ({"part": n} if len(groups) > 1 else {})
    decoded.clear()
    assert made.shard(groups[0], len(made) - 1)["path"] == f"{parts[-1]}-{groups[0]}"
    assert made.id(len(made) - 1) == parts[-1]
    assert decoded == {"all": 4}
    assert made.ids.to_pylist() == list(dict.fromkeys(parts)) == [made.id(i) for i in range(len(made))]


# counted


@pytest.mark.parametrize("n", [24, 96])
def test_publishing_does_not_grow_with_what_was_published(stores, n):
    """Mean requests and bytes of a publish onto `n` earlier ones: the same, but for one more level of tables."""
    root = loader.Root(f"memory://compact-{next(_numbers)}")
    for run in range(n):
        fake_publish(root, run)
    store = stores.Counting(root.store)
    again = loader.Root(root.url)
    again._use(store)
    again.state  # noqa: B018
    store.calls.clear()
    store.nbytes = 0
    for run in range(16):
        fake_publish(again, n + run)
    assert store.under("data") / 16 < 60
    assert store.nbytes / 16 < 400_000
    manifest = again.open("d").manifest
    assert all(len(manifest[name]) <= 40 for name in LISTS)
    check = NewKeys(root.store, ["sample/000000000"])
    with pytest.raises(DuplicateKey):
        check(again.open("d"))


def fake_publish(root, run):
    from benchmarks.scale import publish

    publish(root, run * 5, 5)
