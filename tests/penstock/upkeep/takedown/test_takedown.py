"""A subject is taken down: nothing of it is left, and everything else is as it was."""

import io
import json
import string
import tarfile
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.labels.annotate import AnnotationOptions, write_annotation
from loader.dataset.log.denies import Target
from loader.dataset.publishing import compaction, extension
from loader.dataset.publishing.extension import Extension
from loader.dataset.tables.parquet import TableFile, get_table
from loader.dataset.tables.stats import merge
from loader.errors import InvalidPlan, TakedownNotFound, VersionRetired
from penstock.cli import main
from penstock.denied import find as find_module
from penstock.denied.keys_tables import KeysTables
from penstock.upkeep.takedown.takedown_run import run_takedown
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal

SECRET = "ZQALICEZQ"


def photos(kit, root):
    """Three versions of photos and one of clips: parts, a group more, an exclusion, names in keys."""
    kit.write(root, "photos", {f"{SECRET}/one": SECRET, "p2": "bob", "p3": "carol", "p4": SECRET})
    kit.write(root, "photos", {"p5": SECRET, "p6": "dave"})
    root.add_group("photos", "up", {"up.txt": lambda sample: "UP " + sample["txt"]})
    root.exclude("photos", ["p4", "p3"], reason=f"near_duplicate of {SECRET}/one (distance 3, 1.0)")
    kit.write(root, "clips", {"c1": SECRET, "c2": "zed"})
    kit.write(root, "texts", {"t1": "zed"})


def test_nothing_is_left_and_the_rest_is_as_it_was(kit, root):
    photos(kit, root)
    before = kit.content(root.open("photos"))
    n = kit.deny(root)
    ran = kit.take_down(root, n)
    assert ran.samples == {"photos": 3, "clips": 1}
    assert sorted(ran.new) == ["clips@2", "photos@5"]
    assert sorted(ran.retired) == ["clips@1", *(f"photos@{i}" for i in range(1, 5))]
    for old in ran.retired:
        with refusal(VersionRetired, what=old) as caught:
            root.open(old)
        assert caught.value.given.startswith("takedown (log entry")
    assert kit.found(root, SECRET)
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    now = root.open("photos")
    assert kit.content(now) == {key: fields for key, fields in before.items() if key in ("p2", "p6")}
    assert now.manifest["parent"] == root.record("photos@4", retired=True).id
    assert kit.content(root.open("texts@1"))["t1"]["cls"] == b"2"
    for ref in ("photos", "clips", "texts"):
        assert verify(root, ref, full=True).problems == []
    assert sorted(now.samples().collect()["who"].to_list()) == ["of bob", "of dave"]
    again = kit.take_down(root, n)
    assert (again.samples, again.new, again.retired, again.touched, again.waiting) == ({}, [], [], [], 0)


def test_run_without_apply_changes_nothing(kit, root):
    photos(kit, root)
    n = kit.deny(root)
    before = [(info.key, info.etag) for info in root.store.list("")]
    ran = run_takedown(root, n, apply=False)
    assert ran.samples == {"photos": 3, "clips": 1}
    assert [(info.key, info.etag) for info in root.store.list("")] == before
    assert "nothing was changed" in ran.text()


@pytest.mark.parametrize("annotated", [False, True])
def test_statistics_of_runs_that_share_a_folder(kit, root, monkeypatch, annotated):
    """An earlier release merged the first two runs into the folder of the last one, or of an annotation: both are
    counted again, each of its own."""
    merges = compaction._merge_samples, compaction._merge_stats
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "choose_merge", lambda nbytes: slice(0, 2 if len(nbytes) > 3 else 0))
        for merge_ in merges:
            patch.setattr(
                compaction,
                merge_.__name__,
                lambda store, prefix, *args, merge_=merge_: merge_(
                    store, prefix.removesuffix("-merged"), *args
                ),
            )
        for run in range(3 if annotated else 4):
            kit.write(root, "photos", {f"{run}-a": SECRET if run in (1, 3) else "bob", f"{run}-b": "dave"})
        if annotated:
            patch.setattr(compaction, "choose_merge", lambda nbytes: slice(0, 2 if len(nbytes) > 2 else 0))
            rows = [{"key": f"{run}-{which}", "label": "cat"} for run in range(3) for which in "ab"]
            root.annotate("photos", "labels", rows, author="ann")
    files = root.open("photos").manifest["samples"]
    folders = [one["path"].rpartition("/")[0] for one in files if one["group"] in ("keys", "labels")]
    assert len(set(folders)) == len(folders) - 1
    kit.take_down(root, kit.deny(root))
    assert len(root.open("photos")) == (5 if annotated else 6)
    assert verify(root, "photos", full=True).problems == []


def test_plans_mixtures_and_packs_over_the_new_version(kit, root):
    photos(kit, root)
    with root.write("tokens") as writer:
        for i, who in enumerate(("bob", SECRET, "carol", "dave")):
            writer.add(f"doc{i}", {"ids.npy": np.arange(i + 3)}, source={"subject": who})

    def plans():
        view = root.open("tokens").select("ids.npy")
        packed = loader.plan(
            {"t": view}, pack=loader.pack("ids.npy", length=4, checksums=True), seed=1, global_batch=1
        )
        mixed = loader.plan(
            {"p": root.open("photos").select("txt"), "c": root.open("clips").where("n > 0").select("txt")},
            seed=3,
            global_batch=2,
            allow_repeats=True,
        )
        some = loader.listed(root.open("photos").select("txt"), [1, 0])
        for plan in (packed, mixed, loader.plan({"p": some}, seed=3, global_batch=1)):
            plan.save(root)
        return packed, mixed

    old = plans()
    unplanned = loader.listed(root.open("tokens").select("ids.npy"), [0])
    n = kit.deny(root)
    kit.take_down(root, n)
    assert [info.key for info in root.store.list("lists/")] == [f"lists/{unplanned.list_sha256}.parquet"]
    root.store.delete_many([f"lists/{unplanned.list_sha256}.parquet"])
    left = {info.key for place in ("plans/", "packs/", "views/", "lists/") for info in root.store.list(place)}
    assert left == set(), left
    for plan in old:
        with refusal(InvalidPlan, what="plan", where=root.url, given=plan.hash):
            loader.open_plan(root, plan.hash)
    packed, mixed = plans()
    tokens = [batch["ids.npy"] for batch in loader.Loader(packed, steps=len(packed.sources["t"].view))]
    assert sum(np.asarray(one).astype(bool).sum() for one in tokens) == 2 + 4 + 5
    seen = set()
    for batch in loader.Loader(mixed, steps=8):
        seen |= {key for _, key in batch.ids}
    assert seen == {"p2", "p6", "c2"}
    kit.sweep(root)
    assert kit.found(root, SECRET) == []


def test_everything_of_a_dataset(kit, root):
    kit.write(root, "photos", {"p1": SECRET, "p2": SECRET})
    kit.write(root, "texts", {"t1": "zed"})
    n = kit.deny(root)
    ran = kit.take_down(root, n)
    assert (ran.new, ran.retired) == ([], ["photos@1"])
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    assert kit.prove(root, n)["result"] == "complete"
    assert kit.take_down(root, n).new == []


def test_version_without_them_is_as_old_as_it_is(kit, root):
    """And not as its parent: a policy keeps it by its own age."""
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
    began_us = time.time_ns() // 1000
    kit.take_down(root, kit.deny(root))
    assert root.open("photos@2").manifest["created_us"] >= began_us


def test_version_that_left_the_sample_out_by_a_commit_still_has_its_bytes(kit, root):
    """The commit after the entry leaves the sample out; the takedown makes its bytes zeros."""
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
    n = kit.deny(root)
    version = kit.write(root, "photos", {"p3": "carol"})
    assert sorted(kit.content(version)) == ["p2", "p3"]
    ran = kit.take_down(root, n)
    assert (ran.new, ran.retired) == (["photos@3"], ["photos@1", "photos@2"])
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    assert sorted(kit.content(root.open("photos"))) == ["p2", "p3"]


def test_two_takedowns_at_once(kit, root):
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob", "p3": "carol"})
    first = kit.deny(root)
    second = kit.deny(root, Target(kind="raw", value="raw/p2.jpg"))
    kit.take_down(root, first)
    assert sorted(kit.content(root.open("photos"))) == ["p3"]
    kit.take_down(root, second)
    assert verify(root, "photos", full=True).problems == []
    kit.sweep(root)
    assert kit.found(root, SECRET, "bob") == []
    assert sorted(kit.content(root.open("photos"))) == ["p3"]


def test_statistics_and_references_by_others(kit, root):
    """Columns of others that name a sample which is taken down forget it; statistics are of what is left."""
    with root.write("photos") as writer:
        for key, who, of in (("p1", SECRET, None), ("p2-x", "bob", "p1"), ("p3-y", "carol", None)):
            writer.add(key, {"txt": "x"}, {"dup_of": of, "label": "p1", "n": 7}, {"subject": who})
    n = kit.deny(root)
    kit.take_down(root, n)
    version = root.open("photos")
    frame = version.samples().collect().sort("key")
    assert frame["dup_of"].to_list() == [None, None]
    assert frame["label"].to_list() == ["p1", "p1"]  # a label is a word, not a sample's name
    (stats,) = (
        get_table(root.store, TableFile.from_json(one)).to_pylist() for one in version.manifest["stats"]
    )
    by = {row["column"]: row for row in stats}
    assert (by["n"]["n"], by["n"]["nulls"], by["n"]["sum"]) == (3, 1, 14.0)
    assert by["dup_of"]["nulls"] == 3
    assert dict(by["subject"]["categories"]) == {"bob": 1, "carol": 1}


def test_among_samples_whose_keys_are_single_letters(kit, root):
    """All of them taken: what stands for one that is taken down is none of them."""
    kit.write(root, "ocr", dict.fromkeys(string.ascii_lowercase + string.digits, "bob"), part_samples=36)
    n = kit.deny(root, Target(kind="sample", value="a", dataset="ocr"))
    assert kit.take_down(root, n).new == ["ocr@2"]
    assert kit.take_down(root, n).new == []
    for shard in root.open("ocr").parts.shard_rows().to_pylist():
        with tarfile.open(fileobj=io.BytesIO(root.store.get(shard["path"]).data)) as tar:
            names = tar.getnames()
        assert len(set(names)) == len(names) == 36
        assert not any(name.startswith("a.") for name in names)


def test_table_is_read_as_often_whatever_the_number_of_versions(kit, root, monkeypatch):
    """Every version has the tables of those before it."""
    read = Counter()
    real = find_module.get_table
    monkeypatch.setattr(
        find_module,
        "get_table",
        lambda store, file, *rest: (read.update([file.path]), real(store, file, *rest))[1],
    )
    for i in range(6):
        kit.write(root, "photos", {f"p{i}": "bob" if i else SECRET, f"q{i}": "carol"})
    kit.deny(root)
    (deny,) = root.state.denies
    found = find_module.find(KeysTables(root, deny), "photos")
    assert len(found.versions) == 6
    assert max(read.values()) <= 2  # once for its rows, once for the names in it


def test_unknown_takedown(root, kit):
    kit.write(root, "photos", {"p1": "bob"})
    with refusal(TakedownNotFound, what="takedown", given=3, accepted="none"):
        run_takedown(root, 3, apply=True)


SUBJECTS = st.sampled_from([SECRET, "bob", "carol"])


def test_any_root_any_takedown(kit):
    any_root(kit, 4)


@pytest.mark.server
def test_any_root_any_takedown_at_length(kit, at_scale):
    any_root(kit, at_scale(6, 40))


def any_root(kit, examples):
    run = given(st.data())(lambda data: one_root(kit, data))
    phases = [Phase.explicit, Phase.generate]  # that it fails is enough: smaller roots are found by hand
    checks = list(HealthCheck)
    settings(
        derandomize=True, deadline=None, max_examples=examples, phases=phases, suppress_health_check=checks
    )(run)()


def one_root(kit, data):
    """Whatever was published, excluded, added and retired: no byte of a marker is left, other samples read the same."""
    root = loader.Root(f"memory://any-takedown-{data.draw(st.integers(0, 2**60))}")
    for info in list(root.store.list("")):
        root.store.delete_many([info.key])
    counter, subjects = 0, {}
    for _ in range(data.draw(st.integers(1, 5))):
        dataset = data.draw(st.sampled_from(["photos", "clips"]))
        there = root.state.newest(dataset) if counter else None
        what = data.draw(st.sampled_from(["write", "write", "group", "exclude"])) if there else "write"
        if what == "write":
            who = data.draw(st.lists(SUBJECTS, min_size=1, max_size=5))
            new = {
                f"{one.lower() if one != SECRET else one}/k{counter + i}": one for i, one in enumerate(who)
            }
            counter += len(who)
            kit.write(root, dataset, new, part_samples=data.draw(st.sampled_from([1, 2, 5])))
            subjects |= {(dataset, key): one for key, one in new.items()}
        elif what == "group":
            field = f"g{counter}.txt"
            counter += 1
            root.add_group(dataset, f"g{counter}", {field: lambda sample: "UP " + sample["txt"]})
        else:
            keys = sorted(kit.content(root.open(dataset)))
            if len(keys) > 1:
                root.exclude(dataset, [data.draw(st.sampled_from(keys))], reason="blurred")
    before = {one: kit.content(root.open(one)) for one in root.datasets()}
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    for dataset, content in before.items():
        left = {key: fields for key, fields in content.items() if subjects[dataset, key] != SECRET}
        if root.state.newest(dataset) is None:
            assert not left
            continue
        version = root.open(dataset)
        assert kit.content(version) == left
        assert verify(root, dataset, full=True).problems == []
        view = version.select("txt")
        plan = loader.plan({"d": view}, seed=0, global_batch=1, allow_repeats=True)
        assert {key for batch in loader.Loader(plan, steps=len(view)) for _, key in batch.ids} == left.keys()
    proof = kit.prove(root, n)
    assert proof["result"] == "complete", [place for place in proof["places"] if not place["clean"]]
    assert SECRET not in json.dumps(proof)


def test_annotations_forget_it_too(kit, root):
    """What was said of the sample goes, what was said of others stays, and columns are counted again."""
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob", "p3": "carol"}, part_samples=2)
    root.annotate(
        "photos",
        "looks",
        [{"key": key, "look": f"as {key}", "who": f"seen {key}"} for key in ("p1", "p2")],
        author="ann",
    )
    root.annotate(
        "photos", "later", [{"key": key, "look": f"like {key}", "n": 9} for key in ("p3", "p2")], author="ann"
    )
    n = kit.deny(root)
    mine = root.open("photos")
    kit.take_down(root, n)
    version = root.open("photos")
    assert version.manifest["format"] == mine.manifest["format"]
    frame = version.samples().collect().sort("key")
    assert frame["look"].to_list() == ["like p2", "like p3"]
    assert frame["who"].to_list() == ["seen p2", "of carol"]
    tables = [get_table(root.store, TableFile.from_json(one)) for one in version.manifest["stats"]]
    merged = merge(row for table in tables for row in table.to_pylist())
    assert merged["look"]["categories"] == {"like p2": 1, "like p3": 1}
    assert merged["who"]["categories"] == {"seen p2": 1, "of carol": 1}
    assert merged["n"]["sum"] == 18.0
    kit.sweep(root)
    assert kit.found(root, SECRET, "seen p1", "as p1") == []
    assert verify(root, "photos", full=True).problems == []
    assert kit.prove(root, n)["result"] == "complete"


@pytest.mark.parametrize("apart", [False, True], ids=["as now", "as an earlier release"])
def test_what_a_refresh_said_is_forgotten_too(kit, root, monkeypatch, apart):
    """Several annotations of one version, of one name even, whose statistics are one file: an earlier release laid it
    in another folder than theirs."""
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob", "p3": "carol"}, part_samples=2)
    if apart:
        own = iter("abc")
        monkeypatch.setattr(
            extension,
            "write_annotation",
            lambda version, prefix, *args, **_: write_annotation(version, f"{prefix}{next(own)}", *args),
        )
    keys = ("p1", "p2")
    rows = [
        (
            AnnotationOptions(name=name, author="model"),
            [{"key": key, column: f"{column} of {key}"} for key in keys],
        )
        for name, column in (("labels", "look"), ("labels", "mood"), ("other", "who"))
    ]
    version = root.open("photos")
    made = extension.publish_extension(root, version, root.begin("photos"), Extension(rows=rows), None)
    folders = {one["path"].rpartition("/")[0] for one in made.manifest["samples"] if one.get("author")}
    assert len(folders) == (3 if apart else 1)
    n = kit.deny(root)
    kit.take_down(root, n)
    assert verify(root, "photos", full=True).problems == []
    kit.sweep(root)
    assert kit.found(root, SECRET, "look of p1", "mood of p1", "who of p1") == []
    frame = root.open("photos").samples().collect().sort("key")
    assert frame["mood"].to_list() == ["mood of p2", None]
    assert kit.prove(root, n)["result"] == "complete"


def test_annotation_that_comes_after_the_entry(kit, root):
    """Labels of a sample that was denied meanwhile say nothing of it."""
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
    n = kit.deny(root)
    done = root.annotate(
        "photos", "looks", [{"key": key, "look": f"as {key}"} for key in ("p1", "p2")], author="ann"
    )
    assert done.version.samples().collect()["look"].to_list() == ["as p2"]
    kit.take_down(root, n)
    kit.sweep(root)
    assert kit.found(root, SECRET, "as p1") == []


def test_tables_of_many_publishes(kit, root):
    """Publishes whose tables were merged, before the takedown and after it."""
    for i in range(10):
        kit.write(root, "photos", {f"p{i}": SECRET if i in (2, 9) else "bob", f"q{i}": "carol"})
    before = kit.content(root.open("photos"))
    n = kit.deny(root)
    kit.take_down(root, n)
    for i in range(9):
        kit.write(root, "photos", {f"r{i}": SECRET if i == 4 else "dora"})
    kit.take_down(root, n)
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    version = root.open("photos")
    assert len(version.manifest["shards"]) < 19
    now = kit.content(version)
    assert {key: fields for key, fields in before.items() if key not in ("p2", "p9")}.items() <= now.items()
    assert len(now) == 18 + 8
    assert verify(root, "photos", full=True).problems == []
    assert kit.prove(root, n)["result"] == "complete"
    with pytest.raises(loader.errors.DuplicateKey):
        kit.write(root, "photos", {"q3": "bob"})


def test_collector_deletes_objects_of_a_takedown(kit, tmp_path, capsys):
    """Though the version has a tag and is leased: by the command line, with no grace."""
    root = loader.Root(tmp_path / "root")
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
    root.tag("photos@1", "paper")
    root.open("photos@1")
    n = kit.deny(root)
    kit.take_down(root, n)
    assert kit.found(root, SECRET)
    arguments = ("--root", str(tmp_path / "root"), "--grace", "0s")
    for _ in range(2):  # what is condemned is seen first, and deleted when it is seen again
        assert main(["gc", "sweep", "--apply", *arguments]) == 0
    assert kit.found(root, SECRET) == []
    assert kit.prove(root, n)["result"] == "complete", capsys.readouterr().out
    assert sorted(kit.content(root.open("photos"))) == ["p2"]
