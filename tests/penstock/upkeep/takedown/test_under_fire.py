"""A takedown among publishers, and killed while raw objects go; tests/dataset/publishing/test_kills.py kills others."""

import itertools
import re
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.log.denies import Target
from loader.dataset.root import root_in_store
from loader.errors import Denied
from loader.storage import open_store
from penstock.denied.record import read_record
from penstock.formats.files_beside import files_beside
from penstock.upkeep.takedown import rewrite, steps
from penstock.upkeep.takedown.raw_objects import RawDeletion, delete_object
from penstock.upkeep.takedown.takedown_run import run_takedown
from penstock.upkeep.verify.version import verify
from tests.mortal_store import killed_runs
from tests.refusals import refusal

SECRET = "ZQALICEZQ"
_numbers = itertools.count()


def begin_takedown(kit, url):
    root = loader.Root(url)
    kit.write(root, "photos", {f"{SECRET}/one": SECRET, "p2": "bob", "p3": "carol"}, part_samples=2)
    root.add_group("photos", "up", {"up.txt": lambda sample: "UP " + sample["txt"]})
    return root, kit.deny(root)


def check(kit, root, n):
    """A run that nothing disturbs ends it."""
    kit.take_down(root, n)
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    assert sorted(kit.content(root.open("photos"))) == ["p2", "p3"]
    assert verify(root, "photos", full=True).problems == []
    assert kit.prove(root, n)["result"] == "complete"


def test_killed_while_raw_objects_go(kit, tmp_path):
    """The one that nothing else was cut of goes, and is not said to be gone before; the other one stays."""
    landing = tmp_path / "landing"
    landing.mkdir()
    alone, shared, other = (landing / f"{name}.jpg" for name in ("alone", "shared", "other"))
    root = loader.Root(tmp_path / "first")
    for dataset, samples in (
        ("clips", {SECRET: alone, f"{SECRET} again": shared, "bob": other}),
        ("photos", {"carol": shared}),
    ):
        with root.write(dataset) as writer:
            for subject, raw in samples.items():
                source = {"raw_uri": str(raw), "subject": subject.removesuffix(" again")}
                writer.add(f"k{len(subject)}", {"txt": subject}, source=source)
    n = kit.deny(root)

    def make_store(name):
        for raw in (alone, shared, other):
            raw.write_bytes(b"raw")
        return open_store(str(shutil.copytree(tmp_path / "first", tmp_path / name)))

    def run(store):
        raw = RawDeletion(delete_object, files_beside)
        run_takedown(root_in_store(store), n, apply=True, raw=raw, raw_below=[str(tmp_path)])

    for store, _, _ in killed_runs(run, make_store, at=range(1, 999, 2)):
        on_record = {one["deleted"] for one in read_record(store, n).having("raw")}
        assert not (alone.exists() and True in on_record)
        run(store)
        assert (alone.exists(), shared.exists(), other.exists()) == (False, True, True)
        root = loader.Root(store.url)
        kit.sweep(root)
        assert kit.prove(root, n)["result"] == "complete"


MORE = {
    "parts": lambda kit, root: kit.write(root, "photos", {"q1": SECRET, "p9": "dora"}),
    "group": lambda kit, root: root.add_group(
        "photos", "low", {"low.txt": lambda sample: sample["txt"].lower()}
    ),
    "exclusion": lambda kit, root: root.exclude("photos", ["p3"], reason="blurred"),
    "retirement": lambda kit, root: root.retire("photos@2", reason="bad"),
}


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        *((what, "commit") for what in sorted(MORE)),
        ("parts", "begin"),
        ("retirement", "begin"),
        ("group", "retire"),
    ],
)
def test_others_publish_meanwhile(kit, root, what, kind):
    root, n = begin_takedown(kit, root.url)
    if (what, kind) == ("retirement", "begin"):
        # The parent is gone before the transaction is begun: the run says so, and the next one goes on.
        with pytest.raises(loader.errors.VersionRetired):
            kit.take_down(kit.interrupted(root, lambda: MORE[what](kit, root), kind), n)
    else:
        kit.take_down(kit.interrupted(root, lambda: MORE[what](kit, root), kind), n)
    kit.take_down(root, n)
    kit.sweep(root)
    assert kit.found(root, SECRET, SECRET.lower()) == []
    expected = {"p2", "p3"} | ({"p9"} if what == "parts" else set()) - (
        {"p3"} if what == "exclusion" else set()
    )
    if what == "exclusion":
        expected -= {"p3"}
    assert set(kit.content(root.open("photos"))) == expected
    assert verify(root, "photos", full=True).problems == []
    assert kit.prove(root, n)["result"] == "complete"


def test_publishers_that_began_before_the_entry(kit, root):
    """Parts and a group that were made before the takedown, and are published after it."""
    root, _ = begin_takedown(kit, root.url)
    txn = root.begin("photos")
    samples = [
        (key, {"txt": f"<{who} {key}>", "cls": 1}, {"who": who}, {"subject": who})
        for key, who in (("q1", SECRET), ("q2", "eve"))
    ]
    part = loader.write_part(root, txn, samples, groups={"cls": "labels"})
    n = kit.deny(root)
    kit.take_down(root, n)
    waiting = [place["path"] for place in kit.prove(root, n)["places"] if not place["clean"]]
    assert any(path and path.startswith(f"data/{txn}/") for path in waiting)
    version = root.publish("photos", [part])
    assert sorted(kit.content(version)) == ["p2", "p3", "q2"]
    check_left = kit.take_down(root, n)
    assert check_left.new == []
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    assert kit.prove(root, n)["result"] == "complete"


@pytest.mark.parametrize("kind", ["abort", "retire"])
def test_everything_of_a_dataset_while_others_publish(kit, root, kind):
    """Nothing is left of photos@1; somebody publishes others' samples on it, just when that is found."""
    kit.write(root, "photos", {"p1": SECRET})
    n = kit.deny(root)
    mine = kit.interrupted(root, lambda: kit.write(root, "photos", {"q1": "bob"}), kind)
    ran = kit.take_down(mine, n)
    assert (ran.new, ran.retired) == (["photos@3"], ["photos@1", "photos@2"])
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    assert sorted(kit.content(root.open("photos"))) == ["q1"]
    assert verify(root, "photos", full=True).problems == []
    assert kit.prove(root, n)["result"] == "complete"


def test_another_takedown_of_the_same_part_meanwhile(kit, root):
    """It is redacted before our commit: ours is made of the other's shards."""
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob", "p3": "carol"})
    n = kit.deny(root)
    other = kit.deny(root, Target(kind="subject", value="bob"))
    kit.take_down(kit.interrupted(root, lambda: kit.take_down(root, other)), n)
    kit.take_down(root, other)
    kit.sweep(root)
    assert kit.found(root, SECRET, "bob") == []
    assert sorted(kit.content(root.open("photos"))) == ["p3"]
    assert verify(root, "photos", full=True).problems == []


def test_rewrite_that_changes_nothing_ends_the_takedown(kit, root, monkeypatch):
    """Published once, named, and not retired: a rewrite in a loop fills the store."""
    root, n = begin_takedown(kit, root.url)
    for name in ("redact_rows", "scrub"):
        monkeypatch.setattr(rewrite, name, lambda table, _: table)
    monkeypatch.setattr(rewrite, "redact_shards", lambda _store, _prefix, file, *_: file)
    with refusal(Denied, what=f"rewrite of takedown {n}", within="photos@3 (data/") as raised:
        kit.take_down(root, n)
    assert re.fullmatch(r"in part .*, rows \[1\]", raised.value.given)
    assert SECRET not in str(raised.value)
    assert [(one.name, one.retired) for one in root.versions("photos")] == [
        (f"photos@{number}", None) for number in (1, 2, 3)
    ]
    monkeypatch.undo()
    check(kit, root, n)


def test_version_that_no_rewrite_takes_up_ends_the_takedown(kit, root, monkeypatch):
    root, n = begin_takedown(kit, root.url)
    monkeypatch.setattr(steps, "publish_redacted", lambda *_: None)
    with refusal(Denied, what=f"rewrite of takedown {n}", within="photos@2 (data/") as raised:
        kit.take_down(root, n)
    assert raised.value.given.startswith("in parts ")
    assert SECRET not in str(raised.value)
    assert [(one.name, one.retired) for one in root.versions("photos")] == [
        ("photos@1", None),
        ("photos@2", None),
    ]
    monkeypatch.undo()
    check(kit, root, n)


def test_versions_that_come_round_after_round_are_followed(kit, root, monkeypatch):
    """Each names the sample again, behind the takedown's newest version."""
    root, n = begin_takedown(kit, root.url)
    numbers = iter(range(4))

    def rewritten(*args):
        record = rewrite.publish_redacted(*args)
        if record is not None and (number := next(numbers, None)) is not None:
            with loader.Root(root.url).write("photos", groups={"cls": "labels"}) as writer:
                writer.add(
                    f"q{number}", {"txt": "b", "cls": 1}, {"dup_of": f"{SECRET}/one"}, {"subject": "bob"}
                )
        return record

    monkeypatch.setattr(steps, "publish_redacted", rewritten)
    ran = kit.take_down(root, n)
    assert ran.new == [f"photos@{number}" for number in range(3, 12, 2)]
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    assert kit.prove(root, n)["result"] == "complete"


def test_parts_of_a_dataset_without_versions(kit, root):
    """They wait to be published: a proof of another dataset's samples names them, as it does any other's."""
    root, n = begin_takedown(kit, root.url)
    txn = root.begin("newset")
    loader.write_part(root, txn, [("q1", {"txt": "x"}, {}, {"subject": SECRET}), ("q2", {"txt": "y"})])
    kit.take_down(root, n)
    waiting = [
        place
        for place in kit.prove(root, n)["places"]
        if (place.get("path") or "").startswith(f"data/{txn}/")
    ]
    assert [place["path"].rpartition(".")[2] for place in waiting] == ["parquet", "parquet", "tar"]
    assert {(one["check"], one["of"], one["clean"]) for one in waiting} == {("absent", "newset", False)}
    root.abort(txn, "not wanted any more")
    kit.sweep(root)
    assert kit.prove(root, n)["result"] == "complete"


def test_takedown_taken_for_dead_is_run_again(kit, root):
    root, n = begin_takedown(kit, root.url)

    def abort():
        (txn,) = (one.txn for one in root.state.txns.values() if one.status == "open")
        root.abort(txn, "no heartbeat")

    with pytest.raises(loader.errors.Fenced):
        kit.take_down(kit.interrupted(root, abort), n)
    check(kit, root, n)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_version_that_was_collected_in_part(kit, data):
    """Whatever a sweep that was killed, or that a cap ended, left of a retired version: the takedown ends, what holds
    the samples keeps its proof incomplete, and what cannot be told apart any more has to go too."""
    root, n = begin_takedown(kit, f"memory://in-part-{next(_numbers)}")
    root.retire("photos@1", reason="old")
    root.retire("photos@2", reason="old")
    kit.write(root, "photos", {"p2": "bob", "p3": "carol"})
    before = {one.key for one in root.store.list("data/")}
    theirs = tuple(f"data/{one.txn}/" for one in root.versions("photos")[:2])
    gone = {key for key in kit.sweep(loader.Root(copy_root(root))) if key.startswith(theirs)}
    kept = data.draw(st.sets(st.sampled_from(sorted(gone)), min_size=1))
    root.store.delete_many(sorted(gone - kept))
    kit.take_down(root, n)
    proof = kit.prove(root, n)
    on_record = {place["path"] for place in proof["places"] if place["check"] == "absent"}
    assert {key for key in kit.found(root, SECRET) if key in before} <= on_record
    assert proof["result"] == "incomplete"
    kit.sweep(root)
    kit.take_down(root, n)
    assert kit.found(root, SECRET) == []
    assert kit.prove(root, n)["result"] == "complete"


def copy_root(root):
    url = f"memory://in-part-{next(_numbers)}"
    other = loader.Root(url)
    for info in root.store.list(""):
        other.store.put(info.key, root.store.get(info.key).data)
    return url
