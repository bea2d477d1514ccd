"""WebDataset's archives as samples: what the webdataset package reads of them, and no field lost without a word."""

import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
import webdataset
from hypothesis import example, given, settings
from hypothesis import strategies as st

import loader
from loader.errors import EmptyVersion, InvalidField, InvalidSample, InvalidStore
from loader.storage import ByteRange, open_store
from penstock.formats.archives import webdataset as format
from penstock.formats.archives.field_names import FieldNames
from penstock.formats.archives.tar_headers import TarMember
from penstock.formats.reading.sample import ForeignSample
from penstock.formats.registration.register import register
from penstock.formats.registration.selection import Selection
from tests.penstock.formats.builders import tars
from tests.penstock.formats.versions import field_bytes as read
from tests.refusals import refusal


def test_samples_are_those_that_webdataset_wrote_and_reads(root, tmp_path):
    (tmp_path / "tars").mkdir()
    long = "a/very-long-folder/" * 12
    with webdataset.ShardWriter(str(tmp_path / "tars/%03d.tar"), maxcount=30, verbose=0) as writer:
        for i in range(100):
            key = f"{long if i == 7 else 'd'}/{i:03}"
            writer.write({"__key__": key, "txt": f"text {i}", "left.npy": np.arange(i), "Cls": i})
    found = read(register(root, "webdataset", tmp_path / "tars", "photos").version)
    theirs = []
    for path in sorted((tmp_path / "tars").iterdir()):
        with path.open("rb") as stream:
            files = webdataset.tariterators.tar_file_expander([{"url": str(path), "stream": stream}])
            theirs += list(webdataset.tariterators.group_by_keys(files))
    assert len(theirs) == len(found) == 100
    source = {row["source_key"] or row["key"]: row["key"] for row in rows(root)}
    for sample in theirs:
        mine = found[source[sample["__key__"]]]
        assert mine == {name: sample[name] for name in ("txt", "left.npy", "cls")}


def rows(root):
    return root.open("photos").samples().collect().to_dicts()


def test_members_in_any_order_are_one_sample_by_their_key(root, tmp_path):
    members = [
        ("b.txt", b"B"),
        ("a.txt", b"A"),
        ("README", b"no extension"),
        ("b.cls", b"1"),
        ("a.cls", b"2"),
    ]
    tars.fill(tmp_path / "tars", {"x.tar": [*members, ("__meta__/x.txt", b"theirs")]})
    found = read(register(root, "webdataset", tmp_path / "tars", "photos").version)
    assert found == {"a": {"txt": b"A", "cls": b"2"}, "b": {"txt": b"B", "cls": b"1"}}


@given(
    keys=st.lists(
        st.sampled_from(["a", "b", "d/a", "é", "./a", "__x", "v1.0/e", "__y__/z", "", "d/", "x\ny"]),
        max_size=4,
    ),
    fields=st.lists(st.sampled_from(["jpg", "cls", "JPG", "seg.png", "b/c", "b__", ""]), max_size=3),
    more=st.sampled_from([[], ["a.jpg"], ["z.jpg"], ["README"]]),
    summed=st.booleans(),
)
@settings(max_examples=50)
@example(keys=["a", "b", "a"], fields=["jpg"], more=[], summed=True)
def test_samples_of_a_table_are_those_of_their_members(keys, fields, more, summed):
    names = [f"{key}.{field}" for key in keys for field in fields] + more
    places = [1000 * at + i for at in range(len(names)) for i in range(2)]
    walked = map(TarMember, names, places[::2], places[1::2])
    crcs = list(range(len(names))) if summed else ()
    table = format._table(names, places, crcs)
    try:
        reader = SimpleNamespace(name="x.tar", crcs=lambda: crcs)
        alone = list(format._group_members(reader, walked, None, FieldNames(), lower=True))
    except InvalidSample:
        assert table is None
        return
    if table is not None:
        spans, sums = iter(map(ByteRange, places[::2], places[1::2])), iter(table.crcs)
        assert alone == [
            ForeignSample(
                key,
                {name: next(spans) for name in table.fields},
                crcs={name: next(sums) for name in table.fields if summed},
            )
            for key in table.keys
        ]
    elif not more and keys and fields:
        odd = {"./a", "__x", "__y__/z", "", "d/", "x\ny"}.intersection(keys) or {
            "b/c",
            "b__",
            "",
        }.intersection(fields)
        assert odd or len(set(keys)) < len(keys) or len({one.lower() for one in fields}) < len(fields)


def test_keys_that_our_format_forbids_are_escaped_and_kept(root, tmp_path):
    names = ["../../etc/a.txt", "/abs/b.txt", "./c.txt", "v1.0/d.txt", "caf\udce9.txt", "k" * 300 + ".txt"]
    data = tars.tar_bytes([(name, name[:3].encode(errors="replace")) for name in names], tarfile.GNU_FORMAT)
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars/x.tar").write_bytes(data)
    register(root, "webdataset", tmp_path / "tars", "photos")
    found = {row["key"]: row["source_key"] for row in rows(root)}
    assert found["c"] is found["v1.0/d"] is None
    kept = {source for source in found.values() if source}
    assert kept == {"../../etc/a", "/abs/b", "caf\\xe9", "k" * 300}
    assert {"%2E%2E/%2E%2E/etc/a", "%/abs/b", "caf%E9"} <= set(found)


def test_keys_that_repeat_have_the_object_in_front(root, tmp_path):
    tars.fill(
        tmp_path / "tars",
        {"x.tar": [("0.txt", b"x0"), ("1.txt", b"x1")], "y.tar": [("0.txt", b"y0"), ("2.txt", b"y2")]},
    )
    found = read(register(root, "webdataset", tmp_path / "tars", "photos").version)
    assert {key: one["txt"] for key, one in found.items()} == {
        "x.tar/0": b"x0",
        "1": b"x1",
        "y.tar/0": b"y0",
        "2": b"y2",
    }


def test_field_that_not_all_samples_have_is_a_group_of_its_own(root, tmp_path):
    members = tars.sample("a", jpg=b"1", cls=b"2") + tars.sample("b", jpg=b"3", cls=b"4", txt=b"5")
    tars.fill(tmp_path / "tars", {"x.tar": members, "y.tar": tars.sample("c", jpg=b"6", cls=b"7")})
    version = register(root, "webdataset", tmp_path / "tars", "photos").version
    assert {
        name: (sorted(one["field_nbytes"]), one["n_rows"]) for name, one in version.manifest["groups"].items()
    } == {
        "media": (["cls", "jpg"], 3),
        "txt": (["txt"], 1),
    }
    assert len(version.select("jpg", "cls")) == 3
    assert len(version.select("jpg", "txt", where_present=True)) == 1


@pytest.mark.parametrize(
    ("members", "error", "fault"),
    [
        (
            [("a.jpg", b"1"), ("a.JPG", b"2")],
            InvalidSample,
            {"what": "a.JPG", "given": 0, "accepted": "one member of a name"},
        ),
        (
            [("a.jpg", b"1"), ("a.pth", b"2")],
            InvalidField,
            {"what": "pth", "where": "x.tar, sample 'a'"},
        ),
        (
            [("a.b c", b"1"), ("a.b_c", b"2")],
            InvalidSample,
            {
                "what": "fields",
                "where": "x.tar, sample 'a'",
                "given": ["b c", "b_c"],
            },
        ),
        ([("a.__x", b"1")], InvalidField, {"what": "__x", "where": "x.tar, sample 'a'"}),
        ([("README", b"1")], EmptyVersion, {"what": "samples", "given": 1}),
    ],
)
def test_what_would_be_lost_is_an_error(members, error, fault, root, tmp_path):
    tars.fill(tmp_path / "tars", {"x.tar": members})
    with refusal(error, **fault):
        register(root, "webdataset", tmp_path / "tars", "photos")
    assert root.datasets() == []


def test_field_is_skipped_on_request(root, tmp_path):
    tars.fill(tmp_path / "tars", {"x.tar": [("a.jpg", b"1"), ("a.pth", b"2")]})
    version = register(root, "webdataset", tmp_path / "tars", "photos", without=["pth"]).version
    assert read(version) == {"a": {"jpg": b"1"}}


PACKED = {
    "x.tgz": b"\x1f\x8b\x08",
    "x.tar.gz": b"\x1f\x8b\x08",
    "x.tar.zst": b"(\xb5/\xfd",
    "x.tar.lz4": b"\x04\x22M\x18",
}


@pytest.mark.parametrize("name", PACKED)
def test_compressed_archives_are_refused_by_name(name, root, tmp_path):
    tars.fill(tmp_path / "tars", {"a.tar": tars.number_samples(0, 2)})
    (tmp_path / "tars" / name).write_bytes(PACKED[name] + bytes(600))
    with refusal(InvalidStore, what="compression", where=f"{tmp_path}/tars/{name} (1 such)") as caught:
        register(root, "webdataset", tmp_path / "tars", "photos")
    assert "penstock import webdataset-compressed" in str(caught.value)


def test_files_beside_archives_are_left_alone(root, tmp_path):
    tars.fill(tmp_path / "tars", {"000.tar": tars.number_samples(0, 2), "001.tar": tars.number_samples(1, 2)})
    whole = (tmp_path / "tars/000.tar").read_bytes()
    beside = {
        "idx": b"v1.2 2\n",
        "md5": b"0" * 32,
        "sha256": b"0" * 64,
        "json": b"{}",
        "tmp": whole,
        "part": whole[:700],
    }
    for ending, data in beside.items():
        (tmp_path / f"tars/000.tar.{ending}").write_bytes(data)
    (tmp_path / "tars/002.tar.done").write_bytes(b"")
    done = register(root, "webdataset", tmp_path / "tars", "photos")
    assert len(done.version) == 4
    assert (done.new, done.others) == (2, 7)


def test_archive_with_the_name_of_a_compressed_one_is_told(root, tmp_path):
    tars.fill(tmp_path / "tars", {"a.tar": tars.number_samples(0, 2), "b.tar.gz": tars.number_samples(1, 2)})
    with refusal(InvalidStore, what="name", where=f"{tmp_path}/tars/b.tar.gz (1 such)", accepted=".tar"):
        register(root, "webdataset", tmp_path / "tars", "photos")
    chosen = Selection(exclude=("*.tar.gz",))
    assert len(register(root, "webdataset", tmp_path / "tars", "photos", selection=chosen).version) == 2


def test_place_without_archives_says_what_is_there(root, tmp_path):
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars/a.jpg").write_bytes(b"")
    with refusal(EmptyVersion, what="webdataset", where=f"{tmp_path}/tars"):
        register(root, "webdataset", tmp_path / "tars", "photos")
    with refusal(InvalidStore, what="format", given="wds"):
        register(root, "wds", tmp_path / "tars", "photos")
    assert loader.Root(root.url).datasets() == []


@pytest.mark.parametrize(("n", "members"), [(2, 400), (5, 300)])
def test_small_members_of_a_bucket_cost_a_request_an_archive_behind_the_first(n, members, monkeypatch):
    store = open_store(f"memory://walks-{n}")
    small = tars.tar_bytes([(f"{i}.bin", bytes(3000)) for i in range(members)])
    large = tars.tar_bytes([(f"{i}.bin", bytes(3 * 2**20)) for i in range(2)])
    archives = [*[small] * n, tars.tar_bytes(tars.number_samples(0, 300)), large, small, small]
    for number, data in enumerate(archives):
        store.put(f"{number}.tar", data)
    asked = {f"{number}.tar": [] for number in range(len(archives))}
    get_range = type(store).get_range

    def record_range(self, key, offset, nbytes, etag=None):
        asked[key].append(nbytes)
        return get_range(self, key, offset, nbytes, etag)

    monkeypatch.setattr(type(store), "get_range", record_range)
    found = format.find_objects(store, list(store.list()))
    for info in found.infos:
        assert list(found.samples(info))
    requests = [len(one) for one in asked.values()]
    assert requests == [2, *[1] * (n - 1), 1, 1, 2, 1]  # the large members come whole, and teach
    assert all(sum(asked[f"{number}.tar"]) <= len(small) for number in range(n))
