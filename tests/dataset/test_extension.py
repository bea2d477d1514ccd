"""Groups, other values and exclusions of published parts, in one version or none."""

import io
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loader
from loader.dataset.labels.annotate import AnnotationOptions
from loader.dataset.log.denies import Target
from loader.dataset.publishing.extension import Extension, open_published_part, publish_extension
from loader.dataset.writing.part_extension import add_part_group, read_part
from loader.errors import Conflict, FieldMismatch, SampleNotFound
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal

HOW = AnnotationOptions(name="refresh-x", author="x 2", nulls="remove")


@pytest.fixture
def ten_samples(root: loader.Root) -> loader.Root:
    with root.write("d", part_samples=4) as writer:
        for i in range(10):
            writer.add(f"k{i}", {"cls": i}, metadata={"w": i})
    return root


def make_extension(root: loader.Root, version: loader.Version, txn: str, **more: Any) -> Extension:
    """A group `twice` for every part, other values of `w` for k1 to k3, and k5 left out."""
    shards = []
    for part in (open_published_part(version, one) for one in version.parts.ids.to_pylist()):
        values = [
            {"twice.npy": np.array([2 * int(fields["cls"])])}
            for _, fields in read_part(root.store, part, ["cls"])
        ]
        shards.append(add_part_group(root.store, part, "twice", values, txn=txn).shards[-1])
    rows = {"k1": {"w": 10}, "k2": {"w": 20}, "k3": {"w": None}}
    return Extension(**{"shards": shards, "rows": [(HOW, rows)], "exclude": {"k5": "too small"}, **more})


def table(version: loader.Version) -> dict[str, int | None]:
    return dict(version.samples().select("key", "w").collect().iter_rows())


def test_one_version_does_all_three(ten_samples: loader.Root) -> None:
    old = ten_samples.open("d")
    txn = ten_samples.begin("d", txn="a" * 32)
    extension = make_extension(ten_samples, old, txn)
    new = publish_extension(ten_samples, old, txn, extension, {"by": "test"})
    assert (new.number, len(new), len(old)) == (2, 9, 10)
    assert table(new) == {**{f"k{i}": i for i in range(10) if i != 5}, "k1": 10, "k2": 20, "k3": None}
    assert table(ten_samples.open("d@1")) == {f"k{i}": i for i in range(10)}
    assert new.manifest["groups"]["twice"]["n_rows"] == 10
    assert {shard["path"] for shard in new.parts.shard_rows().to_pylist()} > {
        one.path for one in extension.shards
    }
    assert verify(ten_samples, new.name, full=True).problems == []
    assert publish_extension(ten_samples, old, txn, extension, None).id == new.id  # committed once


@pytest.mark.parametrize(
    ("meanwhile", "what", "accepted"),
    [
        (lambda root: root.exclude("d", ["k5"], reason="mine"), "exclusion", None),
        (
            lambda root: root.annotate("d", "mine", {"k1": {"w": 7}}, author="me"),
            *("w", 7),
        ),
        (
            lambda root: root.add_group("d", "twice", {"twice.npy": lambda _: np.array([1])}),
            *("group", "d@2"),
        ),
        (lambda root: root.retire("d", reason="wrong"), "parent", None),
    ],
)
def test_what_somebody_else_changed_meanwhile_is_a_conflict(
    ten_samples: loader.Root, meanwhile: Callable[[loader.Root], object], what: str, accepted: object
) -> None:
    old = ten_samples.open("d")
    txn = ten_samples.begin("d", txn="a" * 32)
    extension = make_extension(ten_samples, old, txn)
    meanwhile(ten_samples)
    before = len(ten_samples.state.versions("d"))
    with refusal(Conflict, what=what, accepted=accepted):
        publish_extension(ten_samples, old, txn, extension, None)
    assert len(ten_samples.state.versions("d")) == before


def test_takedown_in_between_leaves_nothing_of_the_sample(ten_samples: loader.Root) -> None:
    old = ten_samples.open("d")
    txn = ten_samples.begin("d", txn="a" * 32)
    extension = make_extension(ten_samples, old, txn)
    ten_samples.log.deny([Target(kind="sample", dataset="d", value="k2")], reason="ticket 7", by="legal")
    new = publish_extension(ten_samples, old, txn, extension, None)
    assert "k2" not in table(new)
    shards = [row for row in new.parts.shard_rows().to_pylist() if row["group"] == "twice"]
    payloads: dict[str, bytes] = {}
    for shard in shards:
        with tarfile.open(fileobj=io.BytesIO(ten_samples.store.get(shard["path"]).data)) as archive:
            payloads |= {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert {name for name, data in payloads.items() if not any(data)} == {"k2.twice.npy"}
    assert verify(ten_samples, new.name, full=True).problems == []


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"exclude": {"nobody": "x"}}, SampleNotFound),
        ({"rows": [(HOW, {"k1": {"w": "a word"}})]}, FieldMismatch),
    ],
)
def test_what_does_not_fit_is_refused(
    ten_samples: loader.Root, more: dict[str, Any], error: type[Exception]
) -> None:
    old = ten_samples.open("d")
    txn = ten_samples.begin("d", txn="a" * 32)
    with pytest.raises(error):
        publish_extension(ten_samples, old, txn, make_extension(ten_samples, old, txn, **more), None)
    assert [one.number for one in ten_samples.versions("d")] == [1]
