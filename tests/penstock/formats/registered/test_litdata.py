"""LitData where it lies: every value that a chunk holds is a field or a column, and damage is told with its byte."""

import json
import math
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import loader
from loader.errors import Corrupt, EmptyVersion, InvalidField, InvalidSample, InvalidStore
from loader.storage import open_store
from penstock.formats import litdata as chunks
from penstock.formats import litdata_index
from penstock.formats.registration.register import register
from tests.penstock.formats.builders import litdata_files as files
from tests.refusals import refusal


def walk_folder(folder):
    """What the format yields: (key, field -> bytes, metadata)."""
    store = open_store(folder)
    found = chunks.find_objects(store, list(store.list()))
    found.stated.refuse()
    out = []
    for info in found.infos:
        data = store.get(info.key).data
        for one in found.samples(info):
            if hasattr(one, "edges"):
                name = one.field
                for number, (at, end) in enumerate(pairwise(one.edges.tolist()), one.first):
                    out.append((f"{one.prefix}{number}", {name: data[at:end]}, {}))
                continue
            spans = {name: data[at.offset : at.offset + at.nbytes] for name, at in one.fields.items()}
            out.append((one.key, spans, dict(one.metadata)))
    return out


def dtypes(kind):
    """(number, numpy dtype) of the dtypes that numpy has too, the last of those that are twice in the table."""
    words = litdata_index.DTYPES[kind]
    known = {word: number for number, word in enumerate(words) if word not in ("bf16", "bool", "c8", "c16")}
    return sorted((number, np.dtype(word).newbyteorder("<")) for word, number in known.items())


@st.composite
def arrays(draw):
    """(encoding, encoded, field, bytes, shape)."""
    kind = draw(st.sampled_from(["tensor", "numpy"]))
    number, dtype = draw(st.sampled_from(dtypes(kind)))
    flat = draw(st.booleans())
    array = draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=flat, max_dims=1 if flat else 3, max_side=4)))
    field = f"tok.{dtype.kind}{dtype.itemsize}"
    if flat:
        return f"no_header_{kind}:{number}", array.tobytes(), field, array.tobytes(), None
    order = ">" if kind == "tensor" else "<"
    head = struct.pack(f"{order}{2 + array.ndim}I", number, array.ndim, *array.shape)
    shape = None if array.ndim == 1 else list(array.shape)
    return kind, head + array.tobytes(), field, array.tobytes(), shape


@given(
    array=arrays(),
    rows=st.lists(
        st.tuples(
            st.binary(max_size=40),
            st.text(max_size=9),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_every_value_is_a_field_or_a_column(array, rows, tmp_path_factory):
    encoding, encoded, field, values, shape = array
    tree = {"img": "jpeg", "in": {"a": "str", "b": ["int", "float"]}, "ok": "bool", "tok": encoding}
    given_rows, expected = [], []
    for number, (data, text, n, w, ok) in enumerate(rows):
        leaves = [data, text.encode(), struct.pack("<q", n), struct.pack("<d", w), bytes([ok]), encoded]
        given_rows.append(leaves)
        metadata = {"in_b_0": n, "in_b_1": w, "ok": ok} | ({"tok_shape": shape} if shape is not None else {})
        expected.append((str(number), {"img.jpg": data, "in.a.txt": text.encode(), field: values}, metadata))
    folder = tmp_path_factory.mktemp("litdata")
    files.samples(folder, tree, given_rows[:2], given_rows[2:])
    assert walk_folder(folder) == expected


SCALAR = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=4)
VALUES = st.recursive(
    SCALAR,
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one, max_size=3),
    max_leaves=6,
)


@given(value=VALUES, document=st.booleans())
def test_json_is_flat_values_or_its_text(value, document, tmp_path_factory):
    folder = tmp_path_factory.mktemp("litdata")
    encoded = json.dumps(value).encode() if document and isinstance(value, dict) else files.json_leaf(value)
    files.samples(folder, {"raw": "bytes", "x": "json"}, [[b"", encoded]])
    ((_, fields, metadata),) = walk_folder(folder)
    kinds = {type(one) for one in value} if isinstance(value, list) else set()
    for kind, word in ((int, "i8"), (float, "f8")):
        if kinds == {kind}:
            assert fields == {"raw": b"", f"x.{word}": np.array(value, word).tobytes()}
            assert metadata == {}
            return
    assert fields == {"raw": b""}
    assert {name: json.loads(text) for name, text in metadata.items()} == (
        {} if value is None else {"x": value}
    )


RECORDS = st.lists(st.sampled_from("abc"), min_size=1, unique=True).flatmap(
    lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(names, SCALAR)), min_size=1, max_size=3)
)


@given(rows=RECORDS)
def test_records_are_their_json(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("litdata")
    files.samples(folder, ["bytes", "json"], [[b"", files.records(rows)]])
    ((_, _, metadata),) = walk_folder(folder)
    assert json.loads(metadata["_1"]) == rows


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "text": st.none() | st.text(max_size=5),
            "raw": st.binary(max_size=9),
            "n": st.none() | st.integers(-9, 9),
            "ids": st.lists(st.integers(-9, 9), max_size=4),
            "tags": st.lists(st.text(max_size=2), max_size=2),
            "of": st.fixed_dictionaries({"x": st.floats(-9, 9), "who": st.text(max_size=3)}),
            "told": st.lists(st.fixed_dictionaries({"role": st.text(max_size=3)}), max_size=2),
        }
    ),
    min_size=1,
    max_size=7,
)


@settings(deadline=None)  # Arrow takes its time at its first table
@given(rows=ROWS, stream=st.booleans(), before=st.booleans())
def test_table_is_read_where_its_values_lie(rows, stream, before, tmp_path_factory):
    rows[0] |= {"text": "a", "n": 1, "ids": [1], "tags": ["t"], "told": [{"role": "r"}]}  # types are known
    folder = tmp_path_factory.mktemp("litdata")
    data = files.table_chunk(rows, stream)
    if before:  # leaves in front of the table say less, and are passed over
        head = 4 * (len(rows) + 2)
        data = files.chunk([files.item([b"x"])] * len(rows)) + data[head:]
    tree = {"text": "str", "raw": "bytes", "n": "int"}
    files.fill(folder, tree, (len(rows), data))
    expected = []
    for number, row in enumerate(rows):
        fields = {"raw": row["raw"], "ids.i8": np.array(row["ids"], "<i8").tobytes()}
        fields["of.who.txt"] = row["of"]["who"].encode()
        metadata = {
            "tags": row["tags"],
            "of_x": row["of"]["x"],
            "told": json.dumps(row["told"], ensure_ascii=False),
        }
        fields |= {"text.txt": row["text"].encode()} if row["text"] is not None else {}
        metadata |= {"n": row["n"]} if row["n"] is not None else {}
        expected.append((str(number), fields, metadata))
    assert walk_folder(folder) == expected


def tokens(files, folder, documents, word="i4", encoding="no_header_tensor:16", **more):
    some = [np.array(one, f"<{word}").tobytes() for one in documents]
    cut = len(some) // 2
    parts = [one for one in (some[:cut], some[cut:]) if one]
    dims = [sum(map(len, one)) // int(word[1:]) for one in parts]
    chunks_ = [(len(one), files.chunk(one)) for one in parts]
    return files.fill(folder, encoding, *chunks_, dims=dims, item_loader="TokensLoader", **more)


@given(
    documents=st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=9),
    most=st.integers(1, 4),
)
def test_each_document_of_tokens_is_a_sample(documents, most, tmp_path_factory):
    folder = tmp_path_factory.mktemp("litdata")
    tokens(files, folder, documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "RUN_SAMPLES", most)
        found = walk_folder(folder)
    assert found == [
        (str(n), {"tokens.i4": np.array(one, "<i4").tobytes()}, {}) for n, one in enumerate(documents)
    ]


def test_tokens_are_a_field_that_packing_takes(root, tmp_path):
    documents = [[n] * (n % 5 + 1) for n in range(21)]
    tokens(files, tmp_path / "litdata", documents, "u2", "no_header_numpy:5")
    version = register(root, "litdata", tmp_path / "litdata", "docs").version
    assert (version.fields, len(version)) == (("tokens.u2",), 21)
    view = version.select("tokens.u2")
    loader.plan({"d": view}, seed=1, global_batch=1, pack=loader.pack("tokens.u2", 8, pad_id=99))
    index = json.loads((tmp_path / "litdata/index.json").read_text())
    index["chunks"][0]["dim"] += 1
    files.put_index(tmp_path / "litdata", index)
    with refusal(
        Corrupt, what="tokens", where=f"{tmp_path}/litdata/chunk-0-0.bin, byte 0", given=30, accepted=31
    ):
        register(root, "litdata", tmp_path / "litdata", "other")


@pytest.mark.parametrize(
    ("at", "value", "fault"),
    [
        (0, 3, {"what": "samples of the chunk", "given": 3, "accepted": 2}),
        (4, 3, {"what": "offset", "given": 3, "accepted": "an offset after the one before"}),
        (12, 2**31, {"what": "end of the last sample", "given": 2147483648, "accepted": 68}),
        (16, 9, {"what": "sample", "given": 26, "accepted": 31}),
        (36, 2**31, {"what": "leaf 'm'", "given": 14, "accepted": "an array"}),
        (32, 2**31, {"what": "leaf 'm'", "given": 14, "accepted": "an array"}),
    ],
)
def test_damage_is_told_with_its_byte(root, tmp_path, at, value, fault):
    matrix = struct.pack("<III", 4, 1, 2) + b"ab"
    files.samples(tmp_path / "l", {"raw": "bytes", "m": "numpy"}, *[[[b"abcd", matrix]] * 2] * 2)
    path = tmp_path / "l/chunk-0-1.bin"
    data = bytearray(path.read_bytes())
    data[at : at + 4] = np.uint32(value).tobytes()
    path.write_bytes(data)
    with refusal(Corrupt, **fault):
        register(root, "litdata", tmp_path / "l", "docs")
    assert root.datasets() == []


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=3), max_leaves=4
)


@given(
    name=st.sampled_from(
        ["chunks", "config", "data_format", "data_spec", "chunk_size", "chunk_bytes", "filename"]
    ),
    value=JSON,
)
@example(name="chunks", value="")
def test_damaged_index_is_told(name, value, tmp_path_factory):
    folder = tmp_path_factory.mktemp("litdata")
    index = files.samples(folder, {"n": "int", "text": "str"}, [[bytes(8), b"x"]] * 2)
    inner = next(one for one in (index, index["chunks"][0], index["config"]) if name in one)
    if inner[name] == value or (name == "chunks" and value == []):
        return
    inner[name] = value
    files.put_index(folder, index)
    with pytest.raises((Corrupt, InvalidStore), match=r"index\.json|byte 0: the chunk|its index gives"):
        walk_folder(folder)


@pytest.mark.parametrize(
    ("change", "error", "fault"),
    [
        (
            {"compression": "zstd"},
            InvalidStore,
            {"what": "compression", "given": "zstd", "accepted": "chunks without compression"},
        ),
        (
            {"ipc_compression": "zstd"},
            InvalidStore,
            {"what": "compression", "given": "zstd", "accepted": "chunks without compression"},
        ),
        (
            {"encryption": {"algorithm": "fernet"}},
            InvalidStore,
            {"what": "encryption", "accepted": "chunks without encryption"},
        ),
        (
            {"item_loader": "ParquetLoader"},
            InvalidStore,
            {"what": "item_loader", "given": "ParquetLoader", "accepted": ["PyTreeLoader", "TokensLoader"]},
        ),
        (
            {"item_loader": "TemporalArrayLoader"},
            InvalidStore,
            {
                "what": "item_loader",
                "given": "TemporalArrayLoader",
                "accepted": ["PyTreeLoader", "TokensLoader"],
            },
        ),
        (
            {"data_format": ["int", "mine:2"]},
            InvalidStore,
            {"what": "text", "given": "mine:2"},
        ),
        ({"data_format": ["int"]}, Corrupt, {"accepted": "an index of LitData"}),
        ({"data_format": ["int", "no_header_tensor:99"]}, Corrupt, {"accepted": "an index of LitData"}),
        (
            {"data_format": ["int", "pickle"]},
            InvalidField,
            {"what": "text.pickle", "where": "chunk-0-0.bin, sample '0'"},
        ),
        (
            {"data_format": ["int", "graph"]},
            InvalidField,
            {"what": "text.graph.pickle", "where": "chunk-0-0.bin, sample '0'"},
        ),
        (
            {"data_format": ["int", "file:pt"]},
            InvalidField,
            {"what": "text.pt", "where": "chunk-0-0.bin, sample '0'"},
        ),
        (
            {"data_format": ["int", "bool"]},
            InvalidSample,
            {"what": "sample 0", "accepted": "a value that could be a field"},
        ),
        ({"data_spec": json.dumps([2, {}])}, Corrupt, {"accepted": "an index of LitData"}),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(root, tmp_path, change, error, fault):
    index = files.samples(tmp_path / "l", {"n": "int", "text": "str"}, [[bytes(8), b"x"]] * 2)
    index["config"].update(change)
    files.put_index(tmp_path / "l", index)
    with refusal(error, **fault):
        register(root, "litdata", tmp_path / "l", "docs")


def test_places_of_others_are_told(root, tmp_path):
    index = files.samples(tmp_path / "a/train", "str", [[b"x"]])
    (tmp_path / "b").mkdir()
    with pytest.raises(EmptyVersion):
        register(root, "litdata", tmp_path / "b", "b")
    files.put_index(tmp_path / "b", {"shards": []})
    with refusal(
        InvalidStore, where=f"{tmp_path}/b/index.json", given="shards of MDS", accepted="chunks of LitData"
    ):
        register(root, "litdata", tmp_path / "b", "b")
    index["chunks"][0]["filename"] = "no.bin"
    files.put_index(tmp_path / "a/train", index)
    with refusal(Corrupt, what=["no.bin"], given=1):
        register(root, "litdata", tmp_path / "a/train", "a")
    rows = [{"a b": 1, "a-b": 2, "text": "x"}]
    files.fill(tmp_path / "c", {"text": "str"}, (1, files.table_chunk(rows)))
    with refusal(
        InvalidSample,
        what="a_b",
        where=f"{tmp_path}/c/chunk-0-0.bin",
        given=["a b", "a-b"],
        accepted="one column of a name",
    ):
        register(root, "litdata", tmp_path / "c", "c")
    files.fill(
        tmp_path / "d", {"text": "str"}, (9, files.table_chunk([{"text": "x" * 999}] * 9, compression="zstd"))
    )
    with refusal(
        InvalidStore,
        what="compression",
        where=f"{tmp_path}/d/chunk-0-0.bin",
        accepted="chunks without compression",
    ):
        register(root, "litdata", tmp_path / "d", "d")


def test_compressed_table_is_refused_before_it_is_decompressed(tmp_path):
    """59 KB took 1.6 GiB; here 128 MiB of two letters: a child process grows by less than 64 MiB."""
    rows = [{"text": "x" * 2**26}, {"text": "y" * 2**26}]
    files.fill(tmp_path / "d", {"text": "str"}, (2, files.table_chunk(rows, compression="zstd")))
    code = """
import sys
import loader
from loader.errors import InvalidStore
from penstock.formats.registration.register import register
root = loader.Root("memory://lit")
def peak_mib():
    status = open("/proc/self/status").read()  # getrusage counts the parent's memory as well
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024
before = peak_mib()
try:
    register(root, "litdata", sys.argv[1], "d")
except InvalidStore as error:
    assert "its table is compressed" in str(error), error
    print(peak_mib() - before)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "d")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[4])
    assert int(done.stdout) < 64


def test_names_of_files_and_of_the_sample_itself(tmp_path):
    kinds = [
        "video:mkv",
        "image:png",
        "file",
        "file:pdf",
        "nifti:nii.gz",
        "audio",
        "pil",
        "jpeg_array",
        "tifffile",
    ]
    tree = {"key": "int", "x": kinds}
    files.samples(tmp_path / "a", tree, [[struct.pack("<q", 5), *[b"x"] * len(kinds)]])
    ((key, fields, metadata),) = walk_folder(tmp_path / "a")
    words = ["mkv", "png", "", "pdf", "nii.gz", "wav", "pil", "jpeg-array", "tiff"]
    assert list(fields) == [f"x.{n}.{word}".removesuffix(".") for n, word in enumerate(words)]
    assert (key, metadata) == ("0", {"litdata_key": 5})
    files.samples(tmp_path / "b", "str", [[b"x"]])
    assert walk_folder(tmp_path / "b") == [("0", {"data.txt": b"x"}, {})]
    assert math.prod(len(words) for words in litdata_index.DTYPES.values()) == 21 * 14
