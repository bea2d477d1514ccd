"""Samples of a version one by one, and its head as a table."""

import io

import numpy as np
import pytest
from PIL import Image

import loader
from loader.errors import DecodeFailed, FieldNotFound
from tests.refusals import refusal
from tests.servers.processes import python


def jpeg(value):
    out = io.BytesIO()
    Image.new("RGB", (8, 6), (value, value, value)).save(out, "jpeg")
    return out.getvalue()


@pytest.fixture
def version(tmp_path):
    root = loader.Root(tmp_path)
    with root.write("d", part_samples=30) as writer:
        for i in range(100):
            fields = {"jpg": jpeg(i), "cls": i, "caption.txt": f"photo {i}", "x.npy": np.full((2, 3), i)}
            writer.add(
                f"k{i:03d}", {**fields, "raw.bin": bytes([i]), "mp4": b"no video"}, metadata={"width": 8 + i}
            )
    return root.open("d")


def numbers(samples):
    return [sample["cls"] for sample in samples]


def test_version_index_returns_a_decoded_sample(version):
    sample = version[7]
    assert list(sample) == ["__key__", *version.fields]
    i = sample["cls"]
    assert (sample["__key__"], sample["caption.txt"], sample["raw.bin"]) == (
        f"k{i:03d}",
        f"photo {i}",
        bytes([i]),
    )
    assert (sample["jpg"].shape, sample["jpg"].dtype) == ((6, 8, 3), np.uint8)
    assert sample["mp4"] == b"no video"  # which frames is not said
    assert sample["x.npy"].tolist() == [[i] * 3] * 2
    assert version[-1]["__key__"] == version[len(version) - 1]["__key__"] == version.keys(np.array([99]))[0]


def test_version_iterates_in_the_order_of_ordinals(version):
    every = list(version)
    assert [sample["__key__"] for sample in every] == version.keys(np.arange(len(version)))
    assert sorted(numbers(every)) == list(range(100))
    assert numbers(version[95:200]) == numbers(every[95:])
    assert numbers(version[::-30]) == numbers(every[::-30])
    assert version[3:3] == []


def test_view_index_counts_its_own_samples_and_fields(version):
    view = version.select("cls").where("width >= 58")
    assert len(view) == 50
    assert sorted(numbers(view)) == list(range(50, 100))
    assert list(view[0]) == ["__key__", "cls"]
    with pytest.raises(IndexError, match="there are 50 samples"):
        view[50]
    with pytest.raises(IndexError):
        view[-51]


def test_view_index_by_array_reads_each_distinct_sample_once(version):
    view = version.select("cls").where("width >= 58")
    every = numbers(view)
    chosen = np.array([3, -1, 3, 0, 49, 3])
    assert numbers(view[chosen]) == [every[number] for number in chosen]
    assert numbers(version[chosen.astype(np.uint8)[:1]]) == numbers(version[3:4])
    repeated = view[np.array([7, 7])]
    assert repeated[0] is repeated[1]
    assert view[np.empty(0, np.int64)] == []


@pytest.mark.parametrize("index", [np.array([0, 50]), np.array([-51]), np.array([2**63], np.uint64)])
def test_view_index_by_array_refuses_numbers_beyond_the_view(version, index):
    with pytest.raises(IndexError, match="there are 50 samples"):
        version.where("width >= 58")[index]


@pytest.mark.parametrize("index", [np.ones(100, bool), np.array([0.5]), np.array([[1]]), [1, 2]])
def test_version_index_refuses_other_arrays(version, index):
    with pytest.raises(TypeError, match="array of integers"):
        version[index]


@pytest.mark.parametrize("index", ["k001", 1.0, True, None])
def test_version_index_takes_integers_and_slices(version, index):
    with pytest.raises(TypeError, match="pass an integer, a slice or an array"):
        version[index]


def test_version_index_of_samples_with_different_fields(version):
    root = loader.Root(version.store.url)
    with root.write("d", group="notes") as writer:
        writer.add("z", {"note.txt": "alone"})
    mixed = root.open("d")
    alone = [sample for sample in mixed if "note.txt" in sample]
    assert [list(sample) for sample in alone] == [["__key__", "note.txt"]]
    assert len(list(mixed)) == 101


def test_version_index_names_a_field_that_cannot_be_decoded(tmp_path):
    root = loader.Root(tmp_path)
    with root.write("d") as writer:
        writer.add("bad", {"jpg": b"no picture"})
    with refusal(DecodeFailed, what="jpg", where="d@1, sample 'bad'"):
        root.open("d")[0]


def test_head_is_a_table_of_values_sizes_and_columns(version):
    table = version.where("width < 20").head(3)
    assert table.columns[:2] == ["ordinal", "key"]
    assert table.height == 3
    row = table.row(0, named=True)
    assert row["caption.txt"] == f"photo {row['cls']}"
    assert row["width"] == 8 + row["cls"]
    assert row["x.npy"].endswith(" bytes")
    assert version.head().height == 5
    assert "<table" in table._repr_html_()


@pytest.mark.parametrize(
    ("predicate", "given", "hint"),
    [
        ("widht > 3", ["widht"], "did you mean 'width'?"),
        ("width > 3 AND nothing_alike = 1", ["nothing_alike"], "; the samples table of d@1 has"),
        ("width >", "width >", "write e.g."),
    ],
)
def test_where_raises_for_a_typo_where_it_is_typed(version, predicate, given, hint):
    version.where("width > 3")
    with refusal(FieldNotFound, what=f"where({predicate!r})", given=given) as caught:
        version.select("cls").where(predicate)
    assert hint in str(caught.value)


def test_where_of_known_columns_imports_no_polars(version):
    code = (
        "import sys, loader; version = loader.Root(sys.argv[1]).open('d'); "
        'version.where("width BETWEEN 3 AND 50 AND length(key) > 1 AND \\"key\\" <> \'width\' OR part IS NOT NULL"); '
        "print('polars' in sys.modules)"
    )
    run = python("-c", code, version.store.url, check=True)
    assert run.stdout == "False\n"
