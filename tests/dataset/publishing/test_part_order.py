"""Tables keep the order of the parts, whatever is merged."""

from collections import Counter

import numpy as np
import pyarrow as pa

import loader
from benchmarks.scale import publish
from loader.api.explain import provenance
from loader.dataset.publishing import compaction
from loader.dataset.publishing.compaction import compact_lists
from loader.dataset.tables.parquet import TableFile, get_table, put_named_table
from loader.dataset.versions.sample_rows import live_row
from loader.errors import Corrupt
from penstock.upkeep.diff import column_statistics
from penstock.upkeep.verify.version import check_version, verify
from tests.refusals import refusal


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


def test_keys_stay_in_the_order_of_the_parts(url, monkeypatch, at_scale):
    """Publishes of any size, with groups, labels, exclusions and better copies between them. Merges take the oldest of
    too many tables, so that those of the publish itself stay beside what it merged."""
    monkeypatch.setattr(compaction, "SIZES", (14_000, 20_000))
    monkeypatch.setattr(compaction, "MOST_BYTES", 40_000)
    for seed in range(at_scale(1, 4)):
        publish_randomly(loader.Root(f"{url}-{seed}"), seed)


def publish_randomly(root, seed):
    rng = np.random.default_rng(seed)
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


def test_merge_out_of_the_order_of_parts_is_refused(root, monkeypatch):
    """Whatever puts it there: nothing is published."""
    monkeypatch.setattr(compaction, "choose_merge", lambda nbytes: slice(0, 2 if len(nbytes) > 3 else 0))
    monkeypatch.setattr(
        compaction,
        "_replace_tables",
        lambda files, gone, merged: [*(file for file in files if file["path"] not in gone), *merged],
    )
    for run in range(3):
        publish(root, 5 * run, 5)
    with refusal(Corrupt, what="part order"):
        publish(root, 15, 5)
    assert len(root.open("d")) == 15


def key_folders(version):
    """Folders that keys tables of several runs lie in."""
    files = [file for file in version.manifest["samples"] if file["group"] == "keys"]
    found = Counter(file["path"].rpartition("/")[0] for file in files)
    return [folder for folder, n in found.items() if n > 1]


def as_earlier_releases_merged(patch):
    """Into the publisher's own folder, in which its own run may stay as it is."""
    patch.setattr(compaction, "SIZES", (14_000, 20_000))
    patch.setattr(compaction, "MOST_BYTES", 40_000)
    for name in ("_merge_samples", "_merge_stats"):
        patch.setattr(compaction, name, _merge_nearby(getattr(compaction, name)))


def _merge_nearby(merge):
    return lambda store, prefix, *args: merge(store, prefix.removesuffix("-merged"), *args)


def test_runs_that_share_a_folder_are_left_alone(root, monkeypatch):
    """The statistics of both would be taken for those of each."""
    with monkeypatch.context() as patch:
        as_earlier_releases_merged(patch)
        for run in range(24):
            with root.write("d") as writer:
                writer.add(f"{run}-0", {"x": b"1"}, metadata={"no": run})
            if shared := key_folders(root.open("d")):
                break
    assert len(shared) == 1
    for later in range(run + 1, run + 20):
        with root.write("d") as writer:
            writer.add(f"{later}-0", {"x": b"1"}, metadata={"no": later})
    version = root.open("d")
    assert key_folders(version) == shared
    assert len(version.manifest["samples"]) < 40
    assert verify(root, "d", full=True).problems == []


def disorder(store, prefix, body, done):
    """As an earlier release left it: a table of several runs before one that lies among them."""
    body = compact_lists(store, prefix, body, done)
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


def test_what_an_earlier_release_put_out_of_order_is_read_in_order(root, monkeypatch, caplog):
    """By whoever asks for samples; verify names it, and a child is read as well."""
    monkeypatch.setattr("loader.dataset.publishing.commit.compact_lists", disorder)
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
        assert [live_row(version, ordinal) for ordinal in range(len(version))] == frame.to_dicts()
        assert frame["key"].to_list() == [
            f"{no}-{key[2:]}" for no, key in zip(frame["no"], frame["key"], strict=True)
        ]
        view = version.where("no = 3").select("x")
        found = view.keys(view.version_ordinals(np.arange(len(view))))
        assert sorted(found) == [f"3-{i}" for i in range(3) if ref == "d@4" or i]
        with refusal(Corrupt, what="row") as caught:
            provenance(version, version.address(np.arange(len(version)), ["x"]))
        assert f"run penstock verify {ref}" in str(caught.value)
        assert "out of the order of parts" in verify(root, ref).problems[0].what
    assert "d@4: an earlier release left its keys tables out of the order" in caplog.text


def test_keys_that_are_not_those_of_the_parts_are_refused(root, monkeypatch):
    """A table twice and another not at all: there is no order to put them in."""

    def twice(store, prefix, body, done):
        keys = [file for file in body["samples"] if file["group"] == "keys"]
        return {**body, "samples": [keys[0]] * len(keys)}

    monkeypatch.setattr("loader.dataset.publishing.commit.compact_lists", twice)
    for run in range(2):
        with root.write("d") as writer:
            writer.add(f"k{run}", {"x": b"1"})
    with refusal(Corrupt, what="keys tables", where="d@2", given=2, accepted=2):
        root.open("d").samples()
