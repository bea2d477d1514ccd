"""Exclusions: a version without some samples; ordinals close up, bytes stay."""

import numpy as np
import pytest

import loader
from loader.errors import Conflict, EmptyVersion, FieldNotFound, InvalidKey, InvalidSample, SampleNotFound
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal


@pytest.fixture
def ten_samples(root):
    with root.write("d", part_samples=4) as writer:
        for i in range(10):
            writer.add(f"k{i}", {"cls": i}, metadata={"w": i})
    return root


def test_ordinals_stay_contiguous(ten_samples, properties):
    before = ten_samples.open("d").keys(np.arange(10))
    version = ten_samples.exclude("d", ["k3", "k7"], reason="blurred")
    assert (len(version), version.number) == (8, 2)
    assert version.keys(np.arange(8)) == [key for key in before if key not in ("k3", "k7")]
    assert "k3" not in properties.content(version)
    frame = version.samples().collect()
    assert frame["ordinal"].to_list() == list(range(8))
    assert frame["key"].to_list() == version.keys(np.arange(8))
    assert len(version.where("w IN (3, 4)")) == 1
    assert verify(ten_samples, "d@2", full=True).problems == []
    assert len(ten_samples.open("d@1")) == 10


def test_exclusions_accumulate(ten_samples, properties):
    ten_samples.exclude("d", ["k3"], reason="a")
    ten_samples.exclude("d", ["k4", "k5"], reason="b")
    version = ten_samples.exclude("d", ["k6"], reason="c")
    assert sorted(properties.content(version)) == ["k0", "k1", "k2", "k7", "k8", "k9"]
    assert version.manifest["n_rows"] == 10


def test_whole_part_may_go(ten_samples, properties):
    first = ten_samples.open("d").keys(np.arange(4))
    version = ten_samples.exclude("d", first, reason="one camera")
    assert version.parts.n_live.tolist() == [0, 4, 2]
    assert len(properties.content(version)) == 6
    assert len(ten_samples.add_group("d", "g", {"t.txt": lambda sample: "x"}).select("t.txt")) == 6


def test_unknown_keys_are_named(ten_samples):
    with refusal(SampleNotFound, what="key", where="d@1", given="nope"):
        ten_samples.exclude("d", ["k1", "nope", "zero"], reason="x")
    with refusal(SampleNotFound, what="key", where="d@1", given="k\ud800"):
        ten_samples.exclude("d", ["k\ud800"], reason="x")
    ten_samples.exclude("d", ["k1"], reason="x")
    with refusal(SampleNotFound, what="key", where="d@2", given="k1"):
        ten_samples.exclude("d", ["k1"], reason="x")
    assert len(ten_samples.open("d")) == 9


def test_keys_of_an_array(ten_samples):
    assert len(ten_samples.exclude("d", np.array(["k1", "k2"]), reason="x")) == 8


@pytest.mark.parametrize(
    ("keys", "reason", "error"),
    [
        ([], "x", EmptyVersion),
        ("k1", "x", InvalidKey),
        (["k1"], "", InvalidSample),
        (["k1"], 5, InvalidSample),
        (["k1"], "\udcff", InvalidSample),
        ([1, 2], "x", InvalidKey),
        (["k1", None], "x", InvalidKey),
        ([f"k{i}" for i in range(10)], "x", EmptyVersion),
    ],
)
def test_refused(ten_samples, keys, reason, error):
    with pytest.raises(error):
        ten_samples.exclude("d", keys, reason=reason)
    assert len(ten_samples.versions("d")) == 1
    assert {txn.status for txn in ten_samples.state.txns.values()} <= {"committed", "aborted"}


def test_two_exclude_one_sample(ten_samples, properties):
    """Both looked at d@1; the second is refused, for its count of live samples would be wrong."""
    other = loader.Root(ten_samples.url)
    from loader.dataset.publishing import publish as changes

    real, ran = changes.find_keys_to_exclude, []

    def overtaken(*args):
        change = real(*args)
        if not ran:
            ran.append(True)
            other.exclude("d@1", ["k4", "k1"], reason="y")
        return change

    changes.find_keys_to_exclude = overtaken
    try:
        with refusal(Conflict, what="exclusion", where="d@2"):
            ten_samples.exclude("d@1", ["k1"], reason="x")
        ran.clear()
    finally:
        changes.find_keys_to_exclude = real
    assert len(properties.content(ten_samples.open("d"))) == 8


def test_part_is_gone_meanwhile(ten_samples):
    """d@2's part is excluded from, d@2 is retired: the exclusion does not go onto d@1."""
    with ten_samples.write("d") as writer:
        writer.add("new", {"cls": 1})
    from loader.dataset.writing.exclude import StillLive

    check = StillLive({ten_samples.open("d@2").parts.ids[3].as_py(): [0]})
    with refusal(Conflict, what="part", where="d@1"):
        check(ten_samples.open("d@1"))
    with refusal(Conflict, what="parent", given="retired"):
        check(None)


def test_excluded_sample_has_no_field_for_a_view(ten_samples):
    with refusal(FieldNotFound, what="jpg", where="d@2"):
        ten_samples.exclude("d", ["k1"], reason="x").select("jpg")
