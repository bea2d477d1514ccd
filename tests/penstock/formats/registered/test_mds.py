"""MDS where it lies: every value that a shard holds is a field or a column, and damage is told with its byte."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import loader
from loader.errors import Corrupt, EmptyVersion, InvalidField, InvalidSample, InvalidStore
from loader.storage import open_store
from penstock.formats import mds as mds
from penstock.formats.registration.register import register
from tests.penstock.formats.builders import mds_files as files
from tests.refusals import refusal


def walk_folder(folder):
    """What the format yields: (key, field -> bytes, metadata)."""
    store = open_store(folder)
    found = mds.find_objects(store, list(store.list()))
    out = []
    for info in found.infos:
        data = store.get(info.key).data
        for key, fields, metadata, *_ in found.samples(info):
            spans = {name: data[at.offset : at.offset + at.nbytes] for name, at in fields.items()}
            out.append((key, spans, dict(metadata)))
    return out


DTYPES = ["uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64"]
CODES = dict(zip(DTYPES, [8, 9, 16, 17, 18, 32, 33, 34, 64, 65], strict=True))


def arrays(static, dynamic_dtype=False):
    """(encoding, encoded, word, array): an array in each of its four forms."""

    def one(dtype, array):
        flat = array.astype(f"<{array.dtype.kind}{array.dtype.itemsize}").tobytes()
        word = f"{array.dtype.kind}{array.dtype.itemsize}"
        if static:
            return f"ndarray:{dtype}:{','.join(map(str, array.shape))}", flat, word, array
        head = bytes([array.ndim << 2 | 1]) + np.array(array.shape, "<u2").tobytes() + flat
        return (
            ("ndarray", bytes([CODES[dtype]]) + head, word, array)
            if dynamic_dtype
            else (
                f"ndarray:{dtype}",
                head,
                word,
                array,
            )
        )

    shapes = hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)
    return st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(dtype, shapes).map(lambda array: one(dtype, array))
    )


@given(
    array=arrays(True) | arrays(False) | arrays(False, dynamic_dtype=True),
    rows=st.lists(st.tuples(st.binary(max_size=40), st.text(max_size=9)), min_size=1, max_size=5),
    numbers=st.data(),
)
def test_every_value_is_a_field_or_a_column(array, rows, numbers, tmp_path_factory):
    encoding, encoded, word, values = array
    columns = {
        "jpg": "bytes",
        "caption": "str",
        "tok": encoding,
        "n": "int",
        "w": "float32",
        "big": "str_int",
    }
    given_rows, expected = [], []
    for number, (data, text) in enumerate(rows):
        n, w = (
            numbers.draw(st.integers(-(2**63), 2**63 - 1)),
            numbers.draw(st.floats(width=32, allow_nan=False)),
        )
        given_rows.append(
            {
                "jpg": data,
                "caption": text.encode(),
                "tok": encoded,
                "n": np.int64(n).tobytes(),
                "w": np.float32(w).tobytes(),
                "big": str(n).encode(),
            }
        )
        metadata = {"n": n, "w": w, "big": n} | (
            {} if values.ndim == 1 else {"tok_shape": list(values.shape)}
        )
        fields = {"jpg": data, "caption.txt": text.encode(), f"tok.{word}": values.tobytes()}
        expected.append((str(number), fields, metadata))
    folder = tmp_path_factory.mktemp("mds")
    files.fill(folder, columns, given_rows[:2], given_rows[2:])
    assert walk_folder(folder) == expected


@pytest.fixture
def three(tmp_path):
    """A dataset of three shards, 7 documents each."""
    columns = {"tokens": "ndarray:uint16", "n": "int32", "text": "str"}
    files.fill(tmp_path / "mds", columns, *([document(7 * s + i) for i in range(7)] for s in range(3)))
    return tmp_path / "mds"


def document(number):
    tokens = (np.arange(number % 5 + 1) + number).astype("<u2")
    return {
        "tokens": bytes([1 << 2, len(tokens)]) + tokens.tobytes(),
        "n": np.int32(number).tobytes(),
        "text": f"document {number}".encode(),
    }


def test_training_reads_tokens_where_they_lie(root, three):
    version = register(root, "mds", three, "docs").version
    assert version.fields == ("text.txt", "tokens.u2")
    rows = version.samples().collect().to_dicts()
    assert [(row["key"], row["n"]) for row in rows] == [(str(n), n) for n in range(21)]
    view = version.select("tokens.u2").where("n >= 0")
    plan = loader.plan({"d": view}, seed=1, global_batch=2, pack=loader.pack("tokens.u2", 8, pad_id=0))
    with loader.Loader(plan) as batches:
        step = next(batches)
    assert step["tokens.u2"].shape == (2, 8)
    single = loader.plan({"d": version.select("tokens.u2")}, seed=1, global_batch=21)
    with loader.Loader(single) as batches:
        batch = next(batches)
    found = {
        key: value.tolist() for (_, key), value in zip(batch.ids, batch.fields["tokens.u2"], strict=True)
    }
    assert found == {str(n): [n + i for i in range(n % 5 + 1)] for n in range(21)}


@pytest.mark.parametrize(
    ("at", "value", "fault"),
    [
        (0, 8, {"what": "samples of the shard", "given": 8, "accepted": 7}),
        (4, 3, {"what": "offset", "given": 3, "accepted": "an offset after the one before"}),
        (12, 2**31, {"what": "offset", "given": 134, "accepted": "an offset after the one before"}),
        (32, 1, {"what": "offset", "given": 1, "accepted": "an offset after the one before"}),
        (60, 4 + (200 << 8), {"what": "column 'tokens'", "given": 8, "accepted": "an array"}),
        (38, 2**32 - 1, {"what": "sample", "given": 30, "accepted": 4294967307}),
    ],
)
def test_damage_is_told_with_its_byte(root, three, at, value, fault):
    path = three / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    data[at : at + 4] = np.uint32(value).tobytes()
    path.write_bytes(data)
    with refusal(Corrupt, **fault) as caught:
        register(root, "mds", three, "docs")
    assert "shard.00001.mds, byte " in str(caught.value)
    assert root.datasets() == []


JSON = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3),
    max_leaves=4,
)


@given(
    name=st.sampled_from(
        sorted({"samples", "column_names", "column_sizes", "column_encodings", "raw_data", "format"})
    ),
    value=JSON,
)
def test_damaged_index_is_told(name, value, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mds")
    index = files.fill(folder, {"n": "int", "text": "str"}, [{"n": bytes(8), "text": b"x"}] * 2)
    assume(index["shards"][0][name] != value and value != [8, 0])
    assume(
        name != "column_names" or not (isinstance(value, list) and all(isinstance(one, str) for one in value))
    )
    index["shards"][0][name] = value
    files.put_index(folder, index)
    with pytest.raises((Corrupt, InvalidSample)) as refused:
        walk_folder(folder)
    error = refused.value
    # A plausible number of samples differs only from the shard's.
    is_of_shard = name == "samples" and "shard.00000.mds" in str(error.where)
    assert is_of_shard or (error.what, error.accepted) == ("shards[0]", "MDS, version 2")


@pytest.mark.parametrize(
    ("change", "error", "fault"),
    [
        (
            {"compression": "zstd", "zip_data": {"basename": "x"}},
            InvalidStore,
            {"what": "compression of shard.00000.mds"},
        ),
        (
            {"raw_data": {"basename": "no.mds", "bytes": 3}},
            Corrupt,
            {"what": ["no.mds"], "given": 1},
        ),
        (
            {"raw_data": {"basename": "shard.00000.mds", "bytes": 3}},
            Corrupt,
            {"what": "size", "within": "/mds/shard.00000.mds", "accepted": 3},
        ),
        (
            {"column_sizes": [4, None]},
            Corrupt,
            {"what": "shards[0]", "given": "column 'n' of 'int' has the size 4, not 8"},
        ),
        (
            {"column_encodings": ["int", "hdf5"]},
            Corrupt,
            {"what": "shards[0]", "given": "encoding 'hdf5' of column 'text'"},
        ),
        (
            {"column_encodings": ["int", "pkl"]},
            InvalidField,
            {"what": "text.pkl", "where": "shard.00000.mds, sample '0'"},
        ),
        ({"version": 1}, Corrupt, {"what": "shards[0]", "given": "format 'mds', version 1"}),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(root, tmp_path, change, error, fault):
    index = files.fill(tmp_path / "mds", {"n": "int", "text": "str"}, [{"n": bytes(8), "text": b"x"}] * 2)
    index["shards"][0].update(change)
    files.put_index(tmp_path / "mds", index)
    with refusal(error, **fault):
        register(root, "mds", tmp_path / "mds", "docs")


def test_columns_that_would_be_lost_are_told(root, tmp_path):
    files.fill(tmp_path / "a", {"n": "int"}, [{"n": bytes(8)}])
    with refusal(
        InvalidSample,
        what="columns",
        where=f"{tmp_path}/a/shard.00000.mds",
        accepted="a column that could be a field",
    ):
        register(root, "mds", tmp_path / "a", "a")
    row = {"a b": bytes(8), "a-b": bytes(8), "text": b""}
    files.fill(tmp_path / "b", {"a b": "int", "a-b": "int", "text": "str"}, [row])
    with refusal(
        InvalidSample,
        what="a_b",
        where=f"{tmp_path}/b/shard.00000.mds",
        given=["a b", "a-b"],
        accepted="one column of a name",
    ):
        register(root, "mds", tmp_path / "b", "b")
    (tmp_path / "d").mkdir()
    with pytest.raises(EmptyVersion):
        register(root, "mds", tmp_path / "d", "d")
    files.fill(tmp_path / "e", {"key": "int", "text": "str"}, [{"key": np.int64(5).tobytes(), "text": b""}])
    (row,) = register(root, "mds", tmp_path / "e", "e").version.samples().collect().to_dicts()
    assert (row["key"], row["mds_key"]) == ("0", 5)


def test_names_outside_of_ascii_stay_apart(root, tmp_path):
    """Those of fields and of columns."""
    columns = {"标题": "str", "内容": "str", "数": "int", "长": "int"}
    row = {"标题": b"t", "内容": b"c", "数": np.int64(1).tobytes(), "长": np.int64(2).tobytes()}
    files.fill(tmp_path / "mds", columns, [row])
    version = register(root, "mds", tmp_path / "mds", "d").version
    assert version.fields == ("_u5185__u5bb9_.txt", "_u6807__u9898_.txt")
    (found,) = version.samples().collect().to_dicts()
    assert (found["_u6570_"], found["_u957f_"]) == (1, 2)
