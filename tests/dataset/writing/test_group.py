"""add_group: new fields for samples that exist, beside shards that are not touched."""

import numpy as np
import pytest

import loader
from loader.errors import (
    Conflict,
    Corrupt,
    FieldMismatch,
    FieldNotFound,
    InvalidField,
    TransformFailed,
    VersionNotFound,
)
from tests.refusals import refusal


@pytest.fixture
def ten_samples(root):
    """d@1: ten samples in parts of four."""
    with root.write("d", part_samples=4) as writer:
        for i in range(10):
            writer.add(f"k{i}", {"cls": i, "x.npy": np.full(2, i)})
    return root


def more(root, *numbers):
    with root.write("d") as writer:
        for i in numbers:
            writer.add(f"k{i}", {"cls": i, "x.npy": np.full(2, i)})
    return writer.version


def emb(sample):
    return sample["x.npy"] * sample["cls"]


def values(version, field="emb.npy"):
    from loader.dataset.reading.verified_bucket_reads import read_fields
    from loader.modalities import find_decoder

    view = version.select(field, where_present=True)
    addresses = version.address(view.version_ordinals(np.arange(len(view))), [field])
    read = read_fields(version.store, addresses)
    return {a.key: find_decoder(field)(r[field], None).tolist() for a, r in zip(addresses, read, strict=True)}


def test_old_shards_are_not_touched(ten_samples):
    before = {info.key: info.etag for info in ten_samples.store.list("data/")}
    version = ten_samples.add_group("d@1", "emb", {"emb.npy": emb})
    assert (version.name, version.fields) == ("d@2", ("cls", "emb.npy", "x.npy"))
    assert values(version) == {f"k{i}": [i * i, i * i] for i in range(10)}
    after = {info.key: info.etag for info in ten_samples.store.list("data/")}
    assert before.items() <= after.items()
    assert ten_samples.open("d@1").fields == ("cls", "x.npy")
    new = {key.rpartition("/")[2] for key in after.keys() - before.keys() if "manifest" not in key}
    assert new == {
        "shards.parquet",
        *(f"emb-0000{i}.{kind}" for i in range(3) for kind in ("tar", "index.parquet")),
    }


def test_only_the_fields_asked_for_are_read(ten_samples, stores):
    store = ten_samples.store
    counting = stores.Counting(store)
    version = ten_samples.open("d@1")
    version.store = counting
    from loader.dataset.writing.group_computation import write_group

    write_group(version, "t", "g", {"one.txt": lambda sample: sample["__key__"]}, None)
    assert counting.of("get_ranges") == 0
    write_group(version, "t", "h", {"one.txt": lambda sample: str(sample["cls"])}, None)
    assert counting.of("get_ranges") == 3


def test_sample_is_a_mapping(ten_samples):
    seen = []

    def look(sample):
        seen.append(
            (
                sorted(sample),
                len(sample),
                "cls" in sample,
                "__key__" in sample,
                "nope" in sample,
                sample.get("nope", 5),
                sample["cls"],
            )
        )
        return b""

    ten_samples.add_group("d", "g", {"g.bin": look})
    assert sorted(seen) == [(["cls", "x.npy"], 2, True, True, False, 5, i) for i in range(10)]


def test_second_time_fills_only_what_is_missing(ten_samples):
    ten_samples.add_group("d", "emb", {"emb.npy": emb})
    more(ten_samples, 10, 11)
    computed = []

    def record_key(sample):
        computed.append(sample["__key__"])
        return emb(sample)

    version = ten_samples.add_group("d", "emb", {"emb.npy": record_key})
    assert sorted(computed) == ["k10", "k11"]
    assert values(version) == {f"k{i}": [i * i, i * i] for i in range(12)}
    with refusal(Conflict, what="group", where="d@4", given="emb"):
        ten_samples.add_group("d", "emb", {"emb.npy": emb})


def test_missing_share_is_named(ten_samples):
    ten_samples.add_group("d", "emb", {"emb.npy": emb})
    version = more(ten_samples, 10, 11)
    with pytest.raises(
        FieldNotFound, match=r"d@3 lacks emb\.npy \(group 'emb'\) for 2 of 12 samples.*where_present"
    ):
        version.select("cls", "emb.npy")
    with refusal(FieldNotFound, what="groups", where="d@3", given=["emb"]):
        version.select()
    view = version.select("cls", "emb.npy", where_present=True)
    assert len(view) == 10
    assert set(view.keys(view.version_ordinals(np.arange(10)))) == {f"k{i}" for i in range(10)}
    assert len(version.select("cls")) == 12
    assert len(view.where("key = 'k10' OR key = 'k3'")) == 1


def test_somebody_else_was_quicker(ten_samples):
    """The other one publishes while the first computes: the first is refused, nothing is lost."""
    other = loader.Root(ten_samples.url)

    def compute(sample):
        if len(other.versions("d")) == 1:
            other.add_group("d@1", "emb", {"emb.npy": lambda s: np.full(1, 7)})
        return emb(sample)

    with refusal(Conflict, what="group", given="emb", accepted="d@2"):
        ten_samples.add_group("d@1", "emb", {"emb.npy": compute})
    assert values(ten_samples.open("d")) == {f"k{i}": [7] for i in range(10)}
    assert sorted(txn.status for txn in ten_samples.state.txns.values()) == [
        "aborted",
        "committed",
        "committed",
    ]


def test_other_changes_meanwhile_are_kept(ten_samples, properties):
    """Parts, exclusions and another group come while it computes; it is laid on all of them."""
    other, done = loader.Root(ten_samples.url), []

    def compute(sample):
        if not done:
            done.append(True)
            more(other, 10)
            other.exclude("d", ["k3"], reason="x")
            other.add_group("d@1", "other", {"o.txt": lambda s: "o"})
        return emb(sample)

    version = ten_samples.add_group("d@1", "emb", {"emb.npy": compute})
    assert version.number == 5
    found = properties.content(version)
    assert sorted(found) == sorted(f"k{i}" for i in range(11) if i != 3)
    assert {key: sorted(fields) for key, fields in found.items()} == {
        key: ["cls", "x.npy"] if key == "k10" else ["cls", "emb.npy", "o.txt", "x.npy"] for key in found
    }


def test_what_was_excluded_and_is_back_is_not_published_without_its_fields(ten_samples):
    """A retirement brings back a sample that was not computed, since it was excluded in the version it began from."""
    other, done = loader.Root(ten_samples.url), []
    ten_samples.exclude("d@1", ["k3"], reason="a mistake")

    def compute(sample):
        if not done:
            done.append(True)
            other.retire("d@2", reason="the exclusion was a mistake")
        return emb(sample)

    with refusal(Conflict, what="row", accepted="d@2"):
        ten_samples.add_group("d@2", "emb", {"emb.npy": compute})
    assert len(values(ten_samples.add_group("d@1", "emb", {"emb.npy": emb}))) == 10


def test_inputs_leave_out_parts_that_lack_them(ten_samples):
    ten_samples.add_group("d", "emb", {"emb.npy": emb})
    more(ten_samples, 10)
    version = ten_samples.add_group(
        "d", "sum", {"s.npy": lambda s: s["emb.npy"].sum()[None]}, inputs=["emb.npy"]
    )
    assert values(version, "s.npy") == {f"k{i}": [2 * i * i] for i in range(10)}
    with refusal(Conflict, what="group", where="d@4", given="sum"):
        ten_samples.add_group("d", "sum", {"s.npy": emb}, inputs=["emb.npy"])
    with refusal(FieldNotFound, what="nope", where="d@4"):
        ten_samples.add_group("d", "t", {"t.txt": emb}, inputs=["nope"])


def test_excluded_samples_keep_their_row_and_are_not_computed(ten_samples):
    ten_samples.exclude("d", ["k2", "k5"], reason="x")
    computed = []

    def record_key(sample):
        computed.append(sample["__key__"])
        return emb(sample)

    version = ten_samples.add_group("d", "emb", {"emb.npy": record_key})
    assert sorted(computed) == sorted(f"k{i}" for i in range(10) if i not in (2, 5))
    assert values(version) == {f"k{i}": [i * i, i * i] for i in range(10) if i not in (2, 5)}
    assert version.manifest["groups"]["emb"]["n_rows"] == 10


def test_compute_that_raises(ten_samples):
    def divide_by_zero(sample):
        return bytes(1 // (sample["cls"] - 3) * 0)

    with refusal(TransformFailed, what="e.npy", given="ZeroDivisionError") as caught:
        ten_samples.add_group("d", "e", {"e.npy": divide_by_zero})
    assert caught.value.where.endswith("sample 'k3'")
    assert len(ten_samples.versions("d")) == 1
    assert [txn.status for txn in ten_samples.state.txns.values()] == ["committed", "aborted"]


def test_compute_that_asks_for_a_field_that_is_not_there(ten_samples):
    with refusal(FieldNotFound, what="field", given="nope", accepted=["cls", "x.npy"]) as caught:
        ten_samples.add_group("d", "e", {"e.npy": lambda sample: sample["nope"]})
    assert "while computing 'e.npy' of d@1/" in caught.value.__notes__[0]


def test_compute_over_a_damaged_shard(ten_samples):
    version = ten_samples.open("d")
    path = version.parts.shard("media", 1)["path"]
    data = bytearray(ten_samples.store.get(path).data)
    data[512] ^= 1
    ten_samples.store.put(path, bytes(data))
    with refusal(Corrupt, what="cls") as caught:
        ten_samples.add_group("d", "e", {"e.npy": emb})
    assert "media[512:513]" in caught.value.where


def test_value_that_the_field_does_not_take(ten_samples):
    with refusal(
        InvalidField,
        what="jpg",
        given="builtins.int",
        accepted="bytes, bytearray, memoryview or mmap",
    ):
        ten_samples.add_group("d", "e", {"jpg": lambda sample: 3})


def test_what_is_refused_before_anything_is_computed(ten_samples):
    def never(sample):
        raise AssertionError("computed")

    for group, compute, error, fault in (
        ("emb", {}, InvalidField, {"what": "fields", "given": "none"}),
        ("Emb", {"e.npy": never}, InvalidField, {"what": "group", "given": "Emb"}),
        ("emb", {"e.pkl": never}, InvalidField, {"what": "field", "given": "e.pkl"}),
        ("emb", {"cls": never}, Conflict, {"what": "field", "where": "d@1", "given": "cls"}),
        ("emb", {"CLS": never}, InvalidField, {"what": "field", "given": ["cls", "CLS"]}),
        (
            "media",
            {"e.npy": never},
            FieldMismatch,
            {"what": "fields", "given": ["e.npy"], "accepted": ["cls", "x.npy"]},
        ),
        (
            "media",
            {"cls": never, "x.npy": never},
            Conflict,
            {"what": "group", "where": "d@1", "given": "media"},
        ),
    ):
        with refusal(error, **fault):
            ten_samples.add_group("d", group, compute)
    with pytest.raises(VersionNotFound):
        ten_samples.add_group("d@9", "e", {"e.npy": never})
    assert len(ten_samples.versions("d")) == 1
