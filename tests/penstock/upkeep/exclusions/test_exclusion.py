"""Exclusions by people: a record that stands until it is withdrawn, and one version, whatever happens in between."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import loader
from loader.errors import (
    Conflict,
    Corrupt,
    EmptyVersion,
    FormatTooNew,
    InvalidKey,
    InvalidRuntime,
    SampleNotFound,
)
from loader.storage import open_store
from penstock.exclusion_records import Exclusion, records, standing
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.exclusion import exclude, withdraw
from penstock.upkeep.gc import Options, collect
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.verify.root import verify_root
from tests.refusals import refusal


@pytest.fixture
def root(own):
    with loader.Root(own) as root:
        yield root


def keys(version):
    return set(version.samples().collect()["key"])


def stands(root):
    return {key: [one.by for one in found] for key, found in standing(records(root.store, "d")).items()}


def test_one_record_and_one_version(root):
    page = "http://127.0.0.1:8497/v/d/1/s/3"
    record, version = exclude(root, "d@1", ["k5", "k3", "k5"], reason="wrong label", by="ann", page=page)
    assert version.name == "d@5"
    assert keys(version) == keys(root.open("d@4")) - {"k3", "k5"}
    assert version.manifest["producer"] == {
        "exclusion": record.path,
        "by": "ann",
        "reason": "wrong label",
        "page": page,
    }
    assert [(one.key, one.unit_id, one.raw_uri) for one in record.samples] == [
        ("k3", "u3", "s3://raw/3"),
        ("k5", "u5", "s3://raw/5"),
    ]
    assert (record.version, record.version_id) == ("d@1", root.open("d@1").id)
    assert records(root.store, "d") == [record]
    assert stands(root) == {"k3": ["ann"], "k5": ["ann"]}
    assert records(root.store, "other") == []


def test_same_action_again_changes_nothing(root):
    first = exclude(root, "d@1", ["k3"], reason="dark", by="ann")
    again = exclude(root, "d@1", ["k3"], reason="dark", by="ann")
    assert (again[0], again[1].id) == (first[0], first[1].id)
    assert exclude(root, "d@latest", ["k3"], reason="dark", by="ann")[0] == first[0]
    assert len(records(root.store, "d")) == 1
    assert len(root.versions("d")) == 5


def test_stop_between_record_and_version(root, monkeypatch):
    """The record stands for the next build, and the same action again goes on with it."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loader.Root, "exclude", interrupt)
        with pytest.raises(KeyboardInterrupt):
            exclude(root, "d@4", ["k3"], reason="dark", by="ann")
    (record,) = records(root.store, "d")
    assert stands(root) == {"k3": ["ann"]}
    assert len(root.versions("d")) == 4
    again, version = exclude(root, "d@4", ["k3"], reason="dark", by="ann")
    assert again == record
    assert records(root.store, "d") == [record]
    assert "k3" not in keys(version)


@pytest.mark.parametrize("theirs", [["k3"], ["k3", "k5"], ["k6"]], ids=["same", "more", "other"])
def test_somebody_else_is_quicker(root, monkeypatch, theirs):
    """Their exclusion is kept, whether it is of the same sample or of another; nobody sees a conflict."""
    first = loader.Root.exclude

    def after_them(self, *arguments, **options):
        monkeypatch.setattr(loader.Root, "exclude", first)
        exclude(loader.Root(root.url), "d@4", theirs, reason="blurred", by="ben")
        return first(self, *arguments, **options)

    monkeypatch.setattr(loader.Root, "exclude", after_them)
    _, version = exclude(root, "d@4", ["k3", "k4"], reason="dark", by="ann")
    assert keys(version) == keys(root.open("d@4")) - {"k3", "k4", *theirs}
    assert {one.by for one in records(root.store, "d")} == {"ann", "ben"}
    assert stands(root)["k3"] == (["ann", "ben"] if "k3" in theirs else ["ann"])


def test_many_people_at_once(root):
    def one(number):
        chosen = [f"k{2 + number}", "k9"]
        return exclude(loader.Root(root.url), "d@4", chosen, reason="dark", by=f"p{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))
    assert keys(root.open("d")) == keys(root.open("d@4")) - {"k2", "k3", "k4", "k5", "k9"}
    assert sorted(stands(root)["k9"]) == ["p0", "p1", "p2", "p3"]


def test_unknown_keys_write_nothing(root):
    with refusal(
        SampleNotFound, what="keys", where="d@4", given=["k1", "zz"], accepted="keys of live samples"
    ):
        exclude(root, "d@4", ["k3", "zz", "k1"], reason="dark", by="ann")
    assert records(root.store, "d") == []
    assert len(root.versions("d")) == 4
    exclude(root, "d@4", ["k3"], reason="dark", by="ann")
    with pytest.raises(SampleNotFound, match="'k3' was excluded already, by ann: dark"):
        exclude(root, "d", ["k3"], reason="other", by="ben")


def test_arguments_that_are_refused(root):
    asked = {"reason": "dark", "by": "ann"}
    for keys, error, fault in (
        ("k3", InvalidKey, {"what": "keys", "given": "k3", "accepted": "a list of keys"}),
        (["k3", 4], InvalidKey, {"what": "key", "given": 4}),
        (["k3", "\ud800"], InvalidKey, {"what": "key", "given": "\ud800"}),
        ([], InvalidRuntime, {"what": "keys", "given": [], "accepted": "at least one"}),
    ):
        with refusal(error, **fault):
            exclude(root, "d", keys, **asked)
    for change in ({"reason": " "}, {"by": ""}, {"page": "\ud800"}, {"reason": 3}):
        with pytest.raises(InvalidRuntime):
            exclude(root, "d", ["k3"], **{**asked, **change})
    with refusal(EmptyVersion, what="keys", where="other@1", given=1, accepted="not all samples"):
        exclude(root, "other", ["a"], **asked)
    assert list(root.store.list("exclusions/")) == []


def test_mirror_keeps_no_record(root, tmp_path):
    migrate(root, open_store(str(tmp_path / "mirror")), Pace(None, None))
    mirror = loader.Root(tmp_path / "mirror")
    for act in (exclude, withdraw):
        with refusal(Conflict, what="mirror", where=tmp_path / "mirror", accepted=root.url):
            act(mirror, "d@4", ["k3"], reason="dark", by="ann")
    assert list(mirror.store.list("exclusions/")) == []


def test_withdrawal_ends_every_exclusion_of_the_key(root):
    for name in ("ann", "ben"):
        exclude(root, "d@4", ["k3", "k4"], reason=f"dark, says {name}", by=name)
    before = root.open("d").id
    ended = withdraw(root, "d", ["k3"], reason="it is fine", by="cleo")
    assert len(ended.withdraws) == 2
    assert stands(root) == {"k4": ["ann", "ben"]}
    assert root.open("d").id == before
    with refusal(
        SampleNotFound, what="keys", where="d", given=["k3", "zz"], accepted="keys with a standing exclusion"
    ):
        withdraw(root, "d", ["k4", "k3", "zz"], reason="fine", by="cleo")
    assert stands(root) == {"k4": ["ann", "ben"]}
    again, _ = exclude(root, "d@4", ["k3"], reason="not fine", by="cleo")
    assert stands(root)["k3"] == ["cleo"]
    assert [one.name for one in records(root.store, "d")][-1] == again.name


def test_what_was_withdrawn_can_be_excluded_for_the_same_reason(root):
    first, _ = exclude(root, "d@4", ["k3"], reason="dark", by="ann")
    withdraw(root, "d", ["k3"], reason="fine", by="ann")
    second, _ = exclude(root, "d@4", ["k3"], reason="dark", by="ann")
    assert second != first
    assert stands(root) == {"k3": ["ann"]}


def test_samples_that_tell_no_provenance(root):
    record, _ = exclude(root, "d", ["k12"], reason="dark", by="ann")
    assert [(one.unit_id, one.raw_uri, one.raw_sha256) for one in record.samples] == [("", "", "")]


@pytest.mark.parametrize(
    "change",
    [{"by": 3}, {"samples": [{"key": "a"}]}, {"samples": 3}, {"name": "0" * 16}, {"at_us": "x"}, None],
    ids=str,
)
def test_damaged_record_is_named(root, change):
    record, _ = exclude(root, "d", ["k3"], reason="dark", by="ann")
    data = b"{" if change is None else json.dumps(record.to_json() | change).encode()
    root.store.put(record.path, data)
    with refusal(Corrupt, where=record.path, accepted="a record of an exclusion"):
        records(root.store, "d")
    (problem,) = verify_root(root).problems
    assert problem.address == record.path


def test_no_collector_takes_a_record(root):
    record, _ = exclude(root, "d", ["k3"], reason="dark", by="ann")
    report = verify_root(root)
    assert (report.problems, report.n_foreign) == ([], 0)
    for _ in range(2):
        collect(root, Options(grace_s=0), apply=True)
    assert records(root.store, "d") == [record]


def test_record_of_a_later_release(root):
    record, _ = exclude(root, "d", ["k3"], reason="dark", by="ann")
    root.store.put(record.path, json.dumps(record.to_json() | {"more": [1]}).encode())
    assert records(root.store, "d") == [record]
    root.store.put(record.path, json.dumps(record.to_json() | {"format": 2}).encode())
    with refusal(FormatTooNew, what="format", where=record.path, given=2, accepted=1):
        records(root.store, "d")
    assert Exclusion.from_json(record.to_json()) == record
