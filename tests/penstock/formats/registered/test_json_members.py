"""Members `json` of archives: their values are columns, of types that hold those of all samples, and a field too."""

import json
import math

import numpy as np
import pytest

import loader
from loader.dataset.columnar import json_members
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.tables import any_columns
from penstock.cli import main
from penstock.formats.reading import object_file
from penstock.formats.registration.register import register
from tests.penstock.formats.builders import img2dataset, tars


def register_photos(root, place, **more):
    return register(root, "webdataset", place, "photos", **more)


def column(version, name):
    """Values of a column, in the order of the samples' keys."""
    return version.samples().collect().sort("key")[name].to_list()


def kinds(version):
    """Column of metadata -> its type."""
    columns = version.manifest["columns"]
    return {name: one["type"] for name, one in columns.items() if one["group"] == "metadata"}


@pytest.fixture
def fill(tmp_path):
    """fill(documents, ...) writes an archive of each, and returns the folder."""

    def go(*archives, folder="tars"):
        start = 0
        for number, documents in enumerate(archives):
            some = [one for i, facts in enumerate(documents, start) for one in img2dataset.members(i, facts)]
            tars.fill(tmp_path / folder, {f"{number}.tar": some})
            start += len(documents)
        return tmp_path / folder

    return go


def test_columns_of_img2dataset_select_samples_and_json_stays_a_field(root, tmp_path):
    tars.fill(tmp_path / "tars", img2dataset.archives(50))
    done = register_photos(root, tmp_path / "tars")
    version = done.version
    assert version.fields == ("jpg", "json", "txt")
    places = version.address(np.arange(50), ["json"])
    found = zip(places, read_fields(version.shard_store, places), strict=True)
    documents = {at.key: json.loads(bytes(one["json"])) for at, one in found}
    assert documents == {f"{i:09}": img2dataset.document(i) for i in range(50)}
    view = version.select("jpg").where("nsfw = false AND width >= 256")
    ordinals = view.version_ordinals(np.arange(len(view)))
    assert set(view.keys(ordinals)) == img2dataset.selected_keys(50)
    assert column(version, "url") == [f"https://example.org/{i}.jpg" for i in range(50)]
    assert column(version, "json_key") == [f"{i:09}" for i in range(50)]
    assert kinds(version) == {
        "caption": "string",
        "height": "int64",
        "json_key": "string",
        "nsfw": "bool",
        "original_width": "int64",
        "sha256": "string",
        "similarity": "double",
        "status": "string",
        "url": "string",
        "width": "int64",
    }
    assert done.notes == []


BIG = 2**53 + 1


@pytest.mark.parametrize("apart", [False, True], ids=["one archive", "two archives"])
@pytest.mark.parametrize(
    ("values", "kind", "stored"),
    [
        ([1, 2, None, -3], "int64", [1, 2, None, -3]),
        ([1, 0.5], "double", [1.0, 0.5]),
        ([BIG, 2], "int64", [BIG, 2]),
        ([BIG, 0.5], "string", [str(BIG), "0.5"]),
        ([2.0, BIG, 512, 0.5], "string", ["2", str(BIG), "512", "0.5"]),
        ([2**63, 1], "string", [str(2**63), "1"]),
        ([10**30, -(2**63)], "string", [str(10**30), str(-(2**63))]),
        ([True, False, None], "bool", [True, False, None]),
        ([True, 1], "string", ["true", "1"]),
        ([False, "no", 0.5], "string", ["false", "no", "0.5"]),
        ([math.nan, 1], "int64", [None, 1]),
        ([math.inf, 1], "double", [math.inf, 1.0]),
        (["x", [1], {"a": 1}, "y"], "string", ["x", None, None, "y"]),
    ],
)
def test_column_has_the_type_that_holds_the_values_of_all_samples(values, kind, stored, apart, root, fill):
    """The middle of two archives is where values differ: neither knows the type by itself."""
    documents = [{"v": value} for value in values]
    place = fill(documents[:1], documents[1:]) if apart else fill(documents)
    done = register_photos(root, place)
    assert (kinds(done.version), column(done.version, "v")) == ({"v": kind}, stored)
    assert any("text" in note for note in done.notes) == (kind == "string" and "x" not in values)


@pytest.mark.parametrize(
    ("first", "later", "stored", "n_lost"),
    [
        (1, [2, 3.0, 0.5, "4", "x", True], [2, 3, None, 4, None, None], 3),
        (0.5, [2, BIG, "4.5", "x", False], [2.0, None, 4.5, None, None], 3),
        (True, [False, 1, "true", "yes"], [False, None, True, None], 2),
        ("x", [1, 0.5, True, "y", 2**63], ["1", "0.5", "true", "y", str(2**63)], 0),
    ],
)
def test_column_keeps_the_dataset_s_type_and_what_does_not_fit_is_null_and_counted(
    first, later, stored, n_lost, root, fill
):
    register_photos(root, fill([{"v": first}]))
    done = register_photos(root, fill([{"v": first}], [{"v": value} for value in later]))
    assert (done.same, done.new) == (1, 1)
    assert column(done.version, "v") == [first, *stored]
    told = [note.partition(", such as")[0] for note in done.notes if "are null" in note]
    kind = kinds(done.version)["v"]
    loss = f"json: {n_lost} values of v are not {kind}, which the dataset has, and are null"
    assert told == [loss][:n_lost]


def test_dataset_registered_without_columns_gets_them_with_its_next_objects(root, fill, monkeypatch):
    with monkeypatch.context() as before:  # as a release did that read no documents
        before.setattr(json_members.JsonMembers, "columns", lambda self: None)
        old = register_photos(root, fill([{"v": 1}])).version
    again = register_photos(root, fill([{"v": 1}]))
    assert (again.version.id, again.same) == (old.id, 1)
    version = register_photos(root, fill([{"v": 1}], [{"v": 2}, {"v": 3}])).version
    assert column(version, "v") == [None, 2, 3]
    assert len(version.select("json").where("v >= 2")) == 2


def test_documents_that_cannot_be_read_are_null_counted_and_stay_a_field(root, fill):
    deep = b'{"v": ' + b"[" * 100 + b"]" * 100 + b"}"
    broken = [b"", b"no", b"[1]", b'{"v": 1', b"\xff\xfe\xff", deep, b'{"v":' + b"[" * 30_000]
    large = json.dumps({"v": 1, "text": "x" * json_members.MOST_BYTES}).encode()
    done = register_photos(root, fill([{"v": 7}, *broken, large, b'{"v": 8, "v": 9}']))
    assert column(done.version, "v") == [7, *[None] * (len(broken) + 1), 9]
    places = done.version.address(np.arange(len(done.version)), ["json"])
    found = {bytes(one["json"]) for one in read_fields(done.version.shard_store, places)}
    assert {*broken, large} <= found
    assert [note.partition(", such as")[0] for note in done.notes] == [
        f"json: {len(broken)} documents are not JSON objects",
        "json: 1 documents have more than 65,536 bytes",
    ]
    assert all("0.tar, byte " in note for note in done.notes)


def test_texts_that_no_column_takes_are_null_and_counted(root, fill):
    done = register_photos(
        root, fill([{"v": "a"}, {"v": "é" * 9000}, b'{"v": "\\ud800"}', {"v": "é" * 8000}])
    )
    assert column(done.version, "v") == ["a", None, None, "é" * 8000]
    (note,) = done.notes
    assert note.startswith("json: 2 texts are longer than 16,384 bytes, or are not UTF-8, such as ")
    assert note.endswith("'v'")


def test_columns_are_bounded_in_number_and_the_rest_is_counted(root, fill):
    most = any_columns.MOST_COLUMNS
    documents = [{f"c{i}_{k}": k for k in range(10)} for i in range(20)]
    done = register_photos(root, fill(documents[:12], documents[12:], [{"late": 1}]))
    assert len(kinds(done.version)) == most
    assert set(kinds(done.version)) <= {name for one in documents[:7] for name in one}
    assert [note.partition(", such as")[0] for note in done.notes] == [
        "json: 65 columns are beyond the 64 of a dataset",
        "json: 72 values are beyond the 64 columns of an archive",
    ]
    again = register_photos(
        root, fill(documents[:12], documents[12:], [{"late": 1}], [{"more": 1, "c0_0": 5}])
    )
    assert len(kinds(again.version)) == most
    assert column(again.version, "c0_0")[-1] == 5


def test_names_of_members_become_columns_as_those_of_tables(root, fill):
    names = {"标题": 1, "split": "x", "a b": 2, "9lives": 3, "": 4, "n" * 200: 5, "exif.x": 6}
    done = register_photos(root, fill([{**names, "a_b": 7}, {"a b": 8}]))
    assert kinds(done.version).keys() == {
        "_u6807__u9898_",
        "json_split",
        "a_b",
        "_9lives",
        "column",
        "exif_x",
    }
    assert column(done.version, "a_b") == [7, 8]
    assert [note.partition(", such as")[0] for note in done.notes] == [
        "json: 1 names are one column with another name",
        "json: 1 names are too long for columns",
    ]


def test_without_leaves_out_the_field_with_its_columns_or_a_column(root, fill):
    place = fill([{"a": 1, "b": 2}, b"damaged"])
    done = register_photos(root, place, without=["json"])
    assert (done.version.fields, kinds(done.version), done.notes) == (("jpg", "txt"), {}, [])
    other = register(root, "webdataset", place, "other", without=["b"]).version
    assert (other.fields, kinds(other)) == (("jpg", "json", "txt"), {"a": "int64"})


@pytest.mark.parametrize("name", ["{key}.json", "{key}.JSON", "{key}.jSoN"])
def test_samples_with_other_fields_have_the_columns_of_their_documents(name, root, tmp_path):
    """Fields that differ, or lie apart, are read by another way than those that are alike."""
    some = [(name.format(key=f"k{i}"), json.dumps({"v": i}).encode()) for i in range(5)]
    alike = [one for member in some for one in (member, (f"{member[0].partition('.')[0]}.txt", b"t"))]
    tars.fill(tmp_path / "tars", {"0.tar": alike})
    mixed = [
        *alike,
        ("x.txt", b"no document"),
        ("k0.jpg", b"later"),
        ("__meta__/y.json", b'{"w": 1}'),
        ("d.a.json", b'{"w": 2}'),
    ]
    tars.fill(tmp_path / "tars", {"1.tar": [(f"z{name}", data) for name, data in mixed]})
    version = register_photos(root, tmp_path / "tars").version
    found = version.samples().collect()
    assert {key.lstrip("z"): v for key, v in zip(found["key"], found["v"], strict=True)} == {
        **{f"k{i}": i for i in range(5)},
        "x": None,
        "d": None,
        "__meta__/y": None,
    }


@pytest.mark.parametrize("nbytes", [600, 1300, 5000])
def test_bucket_s_documents_are_read_at_the_ends_of_requests_too(nbytes, root, tmp_path, monkeypatch):
    """Requests of odd sizes end within headers, and within documents."""
    tars.fill(tmp_path / "tars", img2dataset.archives(20, image=b"x" * 700))
    here = register_photos(root, tmp_path / "tars").version
    monkeypatch.setattr(object_file, "as_disk", lambda store: None)
    for name in ("FIRST_BYTES", "MOST_BYTES"):
        monkeypatch.setattr(object_file, name, nbytes)
    there = register_photos(loader.Root(tmp_path / "other"), tmp_path / "tars").version
    assert column(there, "original_width") == column(here, "original_width") == [4000 + i for i in range(20)]


def test_archive_without_documents_has_no_columns_and_costs_no_read(root, three, monkeypatch):
    monkeypatch.setattr(object_file.ForwardReader, "aside", None)
    done = register_photos(root, three)
    assert (kinds(done.version), done.notes) == ({}, [])


def test_register_says_what_became_no_column(root, fill, capsys):
    place = fill([{"v": 1}, b"damaged"])
    assert main(["register", "webdataset", str(place), "photos", "--root", root.url]) == 0
    assert "json: 1 documents are not JSON objects, such as " in capsys.readouterr().out
