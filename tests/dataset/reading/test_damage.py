"""Bytes that are not those written: every reader names what, where, whose."""

import numpy as np
import pytest

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.errors import Corrupt, FormatTooNew, ObjectNotFound
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal


@pytest.fixture
def twelve_samples(root):
    with root.write("d", part_samples=4) as writer:
        for i in range(10):
            writer.add(f"k{i}", {"cls": i, "x": bytes([i]) * 700}, metadata={"w": i})
    return root


def shard(root, part=1, group="media"):
    return root.open("d").parts.shard(group, part)


def change(root, path, edit):
    data = bytearray(root.store.get(path).data)
    data = edit(data) or data
    root.store.put(path, bytes(data))


def flip(at):
    def edit(data):
        data[at] ^= 1

    return edit


def read_all(root, fields=("cls", "x")):
    version = root.open("d")
    addresses = version.address(np.arange(len(version)), fields)
    return read_fields(version.store, addresses)


def plan_batches(root):
    version = root.open("d")
    plan = loader.plan({"d": version.select("cls", "x")}, seed=1, global_batch=5)
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0, decode=False, on_corrupt="raise") as batches:
        return [next(batches) for _ in range(2)]


def by_verify(root):
    return verify(root, "d", full=True).problems


READERS = {"read_fields": read_all, "Loader": plan_batches}


def field_address(root, row, field, part=1):
    """What a message about one field must name."""
    version = root.open("d")
    (address,) = version.address(np.array([part * 4 + row]), [field])
    place = address.fields[field]
    return (
        place,
        (
            version.name,
            address.part,
            f"media[{place.offset}:{place.offset + place.nbytes}]",
            repr(address.key),
            f"field {field!r}",
        ),
    )


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("field", ["cls", "x"])
def test_flipped_byte(twelve_samples, reader, field):
    place, names = field_address(twelve_samples, 2, field)
    change(twelve_samples, place.path, flip(place.offset + place.nbytes - 1))
    with refusal(Corrupt, what=field, within=place.path) as caught:
        READERS[reader](twelve_samples)
    for name in names:
        assert name in str(caught.value)
    assert place.path in str(caught.value)
    assert "penstock verify d@1" in str(caught.value)
    problems = by_verify(twelve_samples)
    assert len(problems) == 2
    assert all(name in problems[0].address for name in names)
    assert "SHA-256" in problems[1].what


def test_flip_in_a_tar_header_or_padding_is_found_by_verify(twelve_samples):
    """No reader of ours looks there; other tools do."""
    place, names = field_address(twelve_samples, 2, "x")
    change(twelve_samples, place.path, flip(place.offset - 500))
    first, second = by_verify(twelve_samples)
    assert all(name in first.address for name in names)
    assert "tar header" in first.what
    assert "SHA-256" in second.what
    change(twelve_samples, place.path, flip(place.offset - 500))
    change(twelve_samples, place.path, flip(place.offset + place.nbytes + 3))
    (only,) = by_verify(twelve_samples)
    assert "SHA-256" in only.what
    assert len(plan_batches(twelve_samples)) == 2


@pytest.mark.parametrize("reader", READERS)
def test_truncated_shard(twelve_samples, reader):
    place, names = field_address(twelve_samples, 2, "x")
    change(twelve_samples, place.path, lambda data: data[: place.offset + 10])
    with pytest.raises(Corrupt) as caught:
        READERS[reader](twelve_samples)
    said = str(caught.value) + str(getattr(caught.value, "__notes__", ""))
    cut = [repr(k) for k in twelve_samples.open("d").keys(np.arange(6, 8))]
    assert any(key in said for key in cut)
    assert place.path in said
    problems = by_verify(twelve_samples)
    assert "bytes, the manifest states" in problems[0].what
    assert all(name in problems[1].address for name in names)
    assert "this field is cut off, as all after it" in problems[1].what
    assert len(problems) == 3
    assert verify(twelve_samples, "d").problems == problems[:1]


@pytest.mark.parametrize("reader", READERS)
def test_swapped_shards(twelve_samples, reader):
    """Two whole shards of one dataset, exchanged: sizes and offsets agree, contents do not."""
    a, b = shard(twelve_samples, 0), shard(twelve_samples, 1)
    one, two = twelve_samples.store.get(a["path"]).data, twelve_samples.store.get(b["path"]).data
    assert len(one) == len(two)
    twelve_samples.store.put(a["path"], two)
    twelve_samples.store.put(b["path"], one)
    with refusal(Corrupt, what="cls", within=" media["):
        READERS[reader](twelve_samples)
    found = by_verify(twelve_samples)
    assert {problem.address.split()[0] for problem in found} == {f"d@1/{a['part']}", f"d@1/{b['part']}"}
    assert sum("SHA-256" in problem.what for problem in found) == 2


@pytest.mark.parametrize("reader", READERS)
def test_swapped_indexes(twelve_samples, reader):
    a, b = shard(twelve_samples, 0), shard(twelve_samples, 1)
    one, two = twelve_samples.store.get(a["index_path"]).data, twelve_samples.store.get(b["index_path"]).data
    twelve_samples.store.put(a["index_path"], two.ljust(len(one), b"\0")[: len(one)])
    with refusal(Corrupt, what="its footer", where=f"{twelve_samples.store.url}/{a['index_path']}"):
        READERS[reader](twelve_samples)
    assert any(a["index_path"] in problem.what for problem in verify(twelve_samples, "d").problems)


def test_index_of_another_group(twelve_samples):
    """Right checksum, wrong fields: what a hand-edited shards table could do."""
    twelve_samples.add_group("d", "g", {"t.txt": lambda sample: "x"})
    version = twelve_samples.open("d")
    index = version.parts.shard("g", 0)
    rows = version.parts.shard_rows().to_pylist()
    from loader.dataset.shards.index import IndexPlace

    place = IndexPlace.of(index)
    version.parts.shard = lambda group, position: {**rows[0], **{k: index[k] for k in index if "index" in k}}
    with refusal(
        Corrupt,
        what="fields",
        where=f"{twelve_samples.url}/{place.path}",
        given=["t.txt"],
        accepted=["cls", "x"],
    ):
        version.address(np.array([0]), ["cls"])


@pytest.mark.parametrize("reader", READERS)
def test_missing_shard(twelve_samples, reader):
    path = shard(twelve_samples)["path"]
    twelve_samples.store.delete_many([path])
    with refusal(ObjectNotFound, what="cls", within=path):
        READERS[reader](twelve_samples)
    (problem,) = verify(twelve_samples, "d").problems
    assert path in problem.what


TABLES = ["shards.parquet", "samples-keys-0.parquet", "samples-metadata-0.parquet", "stats.parquet"]


@pytest.mark.parametrize("name", TABLES)
def test_damaged_table(twelve_samples, name):
    (path,) = [info.key for info in twelve_samples.store.list("data/") if info.key.endswith(f"/{name}")]
    change(twelve_samples, path, flip(100))
    problems = verify(twelve_samples, "d").problems
    assert [problem.address for problem in problems] == [f"d@1 {path}"]
    assert "in the manifest" in problems[0].what
    reads = {
        "shards.parquet": lambda: read_all(twelve_samples),
        "samples-keys-0.parquet": lambda: twelve_samples.open("d").samples(),
        "samples-metadata-0.parquet": lambda: len(twelve_samples.open("d").where("w > 3")),
    }
    if name in reads:
        with refusal(Corrupt, what="sha256", where=f"{twelve_samples.url}/{path}"):
            reads[name]()


def test_damaged_exclusions_table(twelve_samples):
    twelve_samples.exclude("d", ["k1"], reason="x")
    (path,) = [
        info.key for info in twelve_samples.store.list("data/") if info.key.endswith("/exclusions.parquet")
    ]
    change(twelve_samples, path, flip(100))
    (problem,) = verify(twelve_samples, "d").problems
    assert path in problem.address
    with refusal(Corrupt, what="sha256", where=f"{twelve_samples.url}/{path}"):
        read_all(twelve_samples)


def test_newer_table(twelve_samples, monkeypatch):
    from loader.dataset.tables import parquet

    monkeypatch.setattr(parquet, "SCHEMA_VERSION", 2)
    with twelve_samples.write("new") as writer:
        writer.add("k", {"cls": 1})
    monkeypatch.undo()
    with refusal(FormatTooNew, what="table schema", given=2, accepted=1) as caught:
        read_first_address(twelve_samples, "new")
    assert caught.value.where.endswith("shards.parquet")


def read_first_address(root, dataset):
    version = root.open(dataset)
    return version.address(np.array([0]), ["cls"])


def test_no_samples_have_no_addresses(twelve_samples):
    version = twelve_samples.open("d")
    assert version.address(np.zeros(0, np.int64), ["cls"]) == []


def test_newer_index(twelve_samples, monkeypatch):
    """Its shards table is of this format, its index of the next."""
    from loader.dataset.shards import index
    from loader.dataset.tables import parquet

    real = index.hashed_table_bytes

    def newer(*args, **kwargs):
        monkeypatch.setattr(parquet, "SCHEMA_VERSION", 2)
        data = real(*args, **kwargs)
        monkeypatch.setattr(parquet, "SCHEMA_VERSION", 1)
        return data

    monkeypatch.setattr(index, "hashed_table_bytes", newer)
    with twelve_samples.write("new") as writer:
        writer.add("k", {"cls": 1})
    with refusal(FormatTooNew, what="table schema", given=2, accepted=1) as caught:
        read_first_address(twelve_samples, "new")
    assert caught.value.where.endswith("media-00000.index.parquet")


def test_newer_manifest(twelve_samples, monkeypatch):
    from loader.dataset.tables import manifest

    twelve_samples.annotate("d", "labels", {"k1": {"label": "cat"}}, author="ann")
    assert twelve_samples.open("d@2").manifest["format"] == 2
    monkeypatch.setattr(manifest, "NEWEST_FORMAT", 1)  # a reader that would not see who said what last
    with refusal(FormatTooNew, what="format", given=2, accepted=1) as caught:
        twelve_samples.open("d")
    assert caught.value.where.endswith(".json")
    assert twelve_samples.open("d@1").manifest["format"] == 1


def test_edited_manifest(twelve_samples):
    path = twelve_samples.record("d@1").manifest
    change(twelve_samples, path, lambda data: data.replace(b'"n_live":10', b'"n_live":11'))
    for action in (
        lambda: twelve_samples.open("d"),
        lambda: verify(twelve_samples, "d"),
        lambda: twelve_samples.exclude("d", ["k1"], reason="x"),
    ):
        with refusal(Corrupt, what="sha256", where=f"{twelve_samples.url}/{path}"):
            action()


def test_edited_log_entry(twelve_samples):
    with twelve_samples.write("d") as writer:
        writer.add("new", {"cls": 1, "x": b""})
    change(twelve_samples, "log/000000000002.json", lambda data: data.replace(b'"number":1', b'"number":7'))
    for action in (lambda: loader.Root(twelve_samples.url).open("d"), lambda: verify(twelve_samples, "d")):
        with refusal(Corrupt, what="checksum", where="log entry log/000000000002.json"):
            action()


def test_tables_that_do_not_fit_the_manifest(twelve_samples):
    """Both whole, both hashed: a manifest whose counts are wrong is refused by the reader."""
    version = twelve_samples.open("d")
    version._parts, version.manifest = None, {**version.manifest, "n_live": 9}
    with refusal(Corrupt, what="live samples", where="d@1", given=10, accepted=9):
        version.address(np.array([0]), ["cls"])


def test_edited_plan(twelve_samples):
    plan = loader.plan({"d": twelve_samples.open("d").select("cls")}, seed=1, global_batch=5)
    plan.save(twelve_samples)
    path = f"plans/{plan.hash}.json"
    assert loader.open_plan(twelve_samples, plan.hash).hash == plan.hash
    change(twelve_samples, path, lambda data: data.replace(b'"seed":1', b'"seed":2'))
    with refusal(
        loader.errors.PlanMismatch, what="plan", where=f"{twelve_samples.url}/{path}", accepted=plan.hash
    ):
        loader.open_plan(twelve_samples, plan.hash)
    twelve_samples.store.put(path, b"{")
    with refusal(Corrupt, what="plan", where=f"{twelve_samples.url}/{path}", given=b"{"):
        loader.open_plan(twelve_samples, plan.hash)


def test_sound_version_has_no_problems(twelve_samples):
    twelve_samples.add_group("d", "g", {"t.txt": lambda sample: "x"})
    twelve_samples.exclude("d", ["k1"], reason="x")
    for ref in ("d@1", "d@2", "d@3"):
        report = verify(twelve_samples, ref, full=True)
        assert report.problems == []
        assert (report.shards, report.rows) == ((3, 10) if ref == "d@1" else (6, 20))


@pytest.mark.parametrize("kind", ["shards", "samples-keys-0"])
def test_damaged_table_among_many_runs_is_named(root, kind):
    """They are fetched side by side; the one that is wrong is the one in the message."""
    for run in range(20):
        with root.write("d") as writer:
            writer.add(f"k{run}", {"cls": run})
    path = [e["path"] for e in root.open("d").manifest[kind.split("-")[0]] if kind in e["path"]][3]
    change(root, path, flip(50))
    actions = {
        "shards": lambda: root.open("d").keys(np.arange(20)),
        "samples-keys-0": lambda: root.exclude("d", ["k3"], reason="x"),
    }
    with refusal(Corrupt, what="sha256", where=f"{root.url}/{path}"):
        actions[kind]()
    assert [problem.address for problem in verify(root, "d").problems] == [f"d@20 {path}"]
