"""`with root.write(...)`: one version of what was added, or nothing at all."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

import loader
from loader.errors import (
    DuplicateKey,
    EmptyVersion,
    FieldMismatch,
    InvalidField,
    InvalidKey,
    InvalidSample,
    RootError,
)
from tests.refusals import refusal


def nothing_happened(root):
    """No version, the transaction aborted, no temporary file left."""
    state = root.state
    assert root.datasets() == []
    assert [txn.status for txn in state.txns.values()] == ["aborted"]


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Temporary files go here, and none is left when the test ends."""
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert list(place.iterdir()) == []


def write(root, samples, **options):
    with root.write("d", **options) as writer:
        for sample in samples:
            writer.add(*sample)
    return writer.version


def check_refusal(root, error, fields, *samples, **options):
    writer = root.write("d", **options)

    def fill():
        with writer:
            for sample in samples:
                writer.add(*sample)

    with refusal(error, **fields):
        fill()
    nothing_happened(root)
    with refusal(RootError, what="version", where="d"):
        _ = writer.version


def test_duplicate_key(root):
    check_refusal(
        root,
        DuplicateKey,
        {"what": "key", "where": "this version", "given": "k"},
        *(("k", {"cls": 1}), ("k", {"cls": 2})),
    )


def test_duplicate_key_that_only_the_publisher_can_see(root):
    txn = root.begin("d")
    parts = [loader.write_part(root, txn, [("k", {"cls": i}), (f"x{i}", {"cls": i})]) for i in range(2)]
    with refusal(DuplicateKey, what="key", where="this version", given="k"):
        root.publish("d", parts)
    assert root.datasets() == []


def test_key_that_the_dataset_has(root):
    write(root, [("k", {"cls": 1})])
    with refusal(DuplicateKey, what="key", where="d@1", given="k"):
        write(root, [("new", {"cls": 1}), ("k", {"cls": 2})])
    assert len(root.versions("d")) == 1


def test_bad_key(root):
    fault = {"what": "key", "given": "a.jpg", "accepted": "no '.' in the last component"}
    check_refusal(root, InvalidKey, fault, ("good", {"cls": 1}), ("a.jpg", {"cls": 1}))


def test_refused_field(root):
    check_refusal(root, InvalidField, {"what": "field", "given": "x.pkl"}, ("k", {"x.pkl": b""}))


@pytest.mark.parametrize("fields", [{}, None, 3, "text", [("jpg", b"")]])
def test_fields_that_are_none(root, fields):
    fault = {"what": "fields", "where": "sample 'k'", "given": fields}
    check_refusal(root, InvalidSample, fault, ("k", fields))


def test_value_that_its_field_does_not_take(root):
    fault = refusal(InvalidField, what="jpg", given="builtins.int")
    with fault as caught, root.write("d") as writer:
        writer.add("cat", {"jpg": 3})
    assert "in sample 'cat'" in caught.value.__notes__
    nothing_happened(root)


def test_fields_that_differ(root):
    check_refusal(
        root,
        FieldMismatch,
        {"what": "fields", "where": "sample 'b'", "given": ["cls", "txt"], "accepted": ["cls", "jpg"]},
        ("a", {"cls": 1, "jpg": b""}),
        ("b", {"cls": 1, "txt": "x"}),
    )


def test_fields_that_differ_from_the_datasets(root):
    with root.write("d") as writer:
        writer.add("a", {"cls": 1})
    with (
        refusal(FieldMismatch, what="group media", given=["txt"], accepted=["cls"]),
        root.write("d") as w,
    ):
        w.add("b", {"txt": "x"})
    with (
        refusal(FieldMismatch, what="field cls", given="other", accepted="media"),
        root.write("d", group="other") as w,
    ):
        w.add("b", {"cls": 1})
    assert len(root.versions("d")) == 1


def test_empty_version(root):
    check_refusal(root, EmptyVersion, {"what": "samples", "where": "d", "given": 0})


def test_one_sample(root, properties):
    with root.write("d") as writer:
        writer.add("k", {"cls": 7, "e": b""})
    assert properties.content(writer.version) == {"k": {"cls": b"7", "e": b""}}
    assert (len(writer.version), writer.version.fields) == (1, ("cls", "e"))


@pytest.mark.parametrize("options", [{"part_samples": 0}, {"shard_bytes": 0}, {"shard_bytes": 2**40}])
def test_sizes_out_of_range(root, options):
    ((name, value),) = options.items()
    with refusal(InvalidSample, what=name, given=value):
        root.write("d", **options)


@pytest.mark.parametrize("producer", [{"a": 1.5}, {1: 2}, {"a": object()}, {"a": "\udcff"}])
def test_producer_that_json_cannot_hold(root, producer):
    """Told before anything is written."""
    with refusal(InvalidSample, what="producer", given=producer):
        root.write("d", producer=producer)
    assert list(root.store.list("")) == []


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_exception_publishes_nothing_and_comes_through(root, error):
    def samples():
        yield "k", {"cls": 1}
        raise error

    with pytest.raises(type(error)) as caught:
        write(root, samples())
    assert caught.value is error
    nothing_happened(root)
    assert list(root.store.list("data/")) == []


def test_add_outside_the_block(root):
    writer = root.write("d")
    with refusal(RootError, what="add", where="d", given="k"):
        writer.add("k", {"cls": 1})
    with writer:
        writer.add("k", {"cls": 1})
    with refusal(RootError, what="add", where="d", given="l"):
        writer.add("l", {"cls": 1})


def test_parts_are_cut_by_samples_and_by_bytes(root, properties):
    with root.write("a", part_samples=4) as writer:
        for i in range(10):
            writer.add(f"k{i}", {"x": b""})
    assert writer.version.parts.n_rows.tolist() == [4, 4, 2]
    with root.write("b", shard_bytes=10_000) as writer:
        for i in range(40):
            writer.add(f"k{i}", {"x": bytes(1000)})
    # A member is 512 bytes of header and 1,024 of payload: the seventh passes 10,000.
    assert writer.version.parts.n_rows.tolist() == [7, 7, 7, 7, 7, 5]
    assert len(properties.content(writer.version)) == 40


def test_samples_lie_in_hash_order_over_all_parts(root):
    from loader.dataset.names import key_hash

    with root.write("d", part_samples=3) as writer:
        for i in range(20):
            writer.add(f"class{i // 10}/{i}", {"cls": i})
    keys = writer.version.keys(np.arange(20))
    assert keys == sorted(keys, key=key_hash)


def test_groups_of_fields_are_shards_of_their_own(root, properties):
    with root.write("d", groups={"cls": "labels", "txt": "labels"}) as writer:
        for i in range(5):
            writer.add(f"k{i}", {"cls": i, "txt": str(i), "x": b"%d" % i})
    version = writer.version
    assert {g: sorted(b["field_nbytes"]) for g, b in version.manifest["groups"].items()} == {
        "labels": ["cls", "txt"],
        "media": ["x"],
    }
    assert properties.content(version)["k3"] == {"cls": b"3", "txt": b"3", "x": b"3"}
    assert [shard["group"] for shard in version.parts.shard_rows().to_pylist()] == ["labels", "media"]


def test_same_samples_written_twice_give_the_same_shard_bytes(tmp_path):
    """In another order, in another root, spilled or not."""
    shards = []
    for name, step in (("a", 1), ("b", -1)):
        root = loader.Root(tmp_path / name)
        with root.write("d", part_samples=7) as writer:
            for i in range(30)[::step]:
                writer.add(f"k{i}", {"cls": i, "x": b"%d" % i * i})
        rows = writer.version.parts.shard_rows()
        shards.append((rows["sha256"].to_pylist(), rows["index_crc32c"].to_pylist()))
    assert shards[0] == shards[1]


@pytest.mark.parametrize(
    ("sample", "given"),
    [
        (("k",), "a tuple of length 1"),
        ((), "a tuple of length 0"),
        ("k", "a str"),
        (3, "a int"),
        (("k", {"cls": 1}, {}, {}, {}), "a tuple of length 5"),
    ],
)
def test_part_of_things_that_are_not_samples(root, sample, given):
    txn = root.begin("d")
    with refusal(InvalidSample, what="sample", given=given, accepted="a tuple of length 2 to 4"):
        loader.write_part(root, txn, [sample])


def test_empty_part(root):
    with refusal(EmptyVersion, what="samples", where="part empty", given=0):
        loader.write_part(root, root.begin("d"), [], name="empty")


@pytest.mark.parametrize("name", ["", "A", "a/b", "ä", "a" * 65, "."])
def test_part_names(root, name):
    if name == "":
        assert loader.write_part(root, root.begin("d"), [("k", {"cls": 1})], name=name).n_rows == 1
        return
    with refusal(InvalidSample, what="part name", given=name):
        loader.write_part(root, root.begin("d"), [("k", {"cls": 1})], name=name)


def test_provenance_and_metadata_are_columns(root):
    with root.write("d", producer={"run": 7}) as writer:
        writer.add("a", {"cls": 1}, metadata={"w": 3}, source={"raw_uri": "s3://x/a", "raw_start": 4})
        writer.add("b", {"cls": 1})
    frame = writer.version.samples().collect().sort("key")
    assert frame["raw_uri"].to_list() == ["s3://x/a", None]
    assert frame["raw_start"].to_list() == ["4", None]
    assert frame["w"].to_list() == [3, None]
    assert "split" not in frame.columns
    assert writer.version.manifest["producer"] == {"run": 7}


def test_folder_of_shards_has_only_what_the_format_says(tmp_path):
    root = loader.Root(tmp_path)
    with root.write("d") as writer:
        writer.add("a", {"cls": 1})
    files = [path.relative_to(tmp_path) for path in Path(tmp_path).rglob("*") if path.is_file()]
    tops = {path.parts[0] for path in files} - {"scratch"}
    assert tops == {"penstock.json", "log", "data", "heartbeats"}
