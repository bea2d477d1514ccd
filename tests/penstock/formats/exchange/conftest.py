"""Readers of what exports write."""

import contextlib
import io
import itertools
import json
import sqlite3
import tarfile
import tempfile

import numpy as np
import pytest


@pytest.fixture(scope="session")
def contents():
    """contents(version) -> key -> (field -> bytes, column -> value) of its live samples, read one by one."""

    def contents(version):
        from loader.dataset.reading.verified_bucket_reads import read_fields

        out = {}
        for row in version.samples().collect().to_dicts():
            (key,) = version.keys(np.array([row["ordinal"]]))
            groups = version.parts.groups
            position = version.parts.position(row["part"])
            names = [
                field
                for group in groups
                if version.parts.has_group(group)[position]
                for field in version.manifest["groups"][group]["field_nbytes"]
            ]
            (fields,) = read_fields(version.shard_store, version.address(np.array([row["ordinal"]]), names))
            columns = {
                name: value
                for name, value in row.items()
                if value is not None and name not in ("ordinal", "part", "row", "key")
            }
            out[key] = (fields, columns)
        return out

    return contents


@pytest.fixture(scope="session")
def objects():
    """objects(store) -> key -> bytes of everything in it."""
    return lambda store: {info.key: store.get(info.key).data for info in store.list()}


def of_webdataset(found):
    """Key -> (field -> bytes, column -> value), as the package of that name reads the archives."""
    import webdataset

    out = {}
    for name in sorted(found):
        if name.endswith(".tar"):
            files = webdataset.tariterators.tar_file_iterator(io.BytesIO(found[name]))
            for sample in webdataset.tariterators.group_by_keys({"__url__": name, **one} for one in files):
                key = sample.pop("__key__")
                assert key not in out
                columns = json.loads(sample.pop("json", b"{}"))
                out[key] = ({field: data for field, data in sample.items() if field != "__url__"}, columns)
            with tarfile.open(fileobj=io.BytesIO(found[name])) as archive:
                names = [member.name for member in archive]
            keys = [webdataset.tariterators.base_plus_ext(name)[0] for name in names]
            for key in dict.fromkeys(keys):
                first, n = keys.index(key), keys.count(key)
                assert names[first : first + n] == sorted(one for one in names if one.startswith(f"{key}."))
    return out


def of_energon(found):
    """The same of an Energon dataset: what its index gives is read from its archives, and its offsets are the same."""
    out = {}
    if ".nv-meta/index.sqlite" not in found:
        return out
    counts = json.loads(found[".nv-meta/.info.json"])["shard_counts"]
    splits = json.loads(found[".nv-meta/split.yaml"])["split_parts"]
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(found[".nv-meta/index.sqlite"])
        for number, (name, count) in enumerate(counts.items()):
            query = (
                "SELECT sample_index, sample_key, byte_offset, byte_size FROM samples WHERE tar_file_id = ?"
            )
            rows = sorted(database.execute(query, (number,)))
            assert [row[0] for row in rows] == list(range(count))
            starts = np.frombuffer(found[f"{name}.idx"], "<u8").tolist()
            assert starts == [*(row[2] for row in rows), rows[-1][2] + rows[-1][3]]
            for index, key, start, size in rows:
                assert key not in out
                query = "SELECT part_name, content_byte_offset, content_byte_size FROM sample_parts"
                parts = database.execute(
                    f"{query} WHERE tar_file_id = ? AND sample_index = ?", (number, index)
                )
                values = {part: found[name][at : at + nbytes] for part, at, nbytes in parts}
                with tarfile.open(
                    fileobj=io.BytesIO(found[name][start : start + size] + bytes(1024))
                ) as archive:
                    own = {one.name: archive.extractfile(one).read() for one in archive}
                assert own == {f"{key}.{part}": data for part, data in values.items()}
                columns = json.loads(values.pop("json", b"{}"))
                assert name in splits.get(columns.get("split"), ()) or "split" not in columns
                out[key] = (values, columns)
    return out


def of_files(found):
    """The same of single files and their table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pq.read_table(pa.BufferReader(found["metadata.parquet"])).to_pylist()
    out = {
        row.pop("key"): ({}, {name: value for name, value in row.items() if value is not None})
        for row in rows
    }
    for name, data in found.items():
        if name != "metadata.parquet" and not name.startswith("."):
            folder, _, file = name.rpartition("/")
            stem, _, field = file.partition(".")
            out[f"{folder}/{stem}"][0][field] = data
    return out


def of_mds(found):
    """The same of MDS shards, as the index says where they are and what their columns hold."""
    out = {}
    for shard in json.loads(found["index.json"])["shards"] if "index.json" in found else []:
        data = found[shard["raw_data"]["basename"]]
        assert len(data) == shard["raw_data"]["bytes"]
        n, *offsets = np.frombuffer(data, "<u4", shard["samples"] + 2).tolist()
        assert n == shard["samples"]
        for begin, end in itertools.pairwise(offsets):
            names = shard["column_names"]
            sizes = np.frombuffer(data, "<u4", len(names), begin).tolist()
            cuts = np.cumsum([begin + 4 * len(names), *sizes])
            assert cuts[-1] == end
            values = {name: data[cuts[i] : cuts[i + 1]] for i, name in enumerate(names)}
            columns = json.loads(values.pop("metadata", b"{}"))
            key = values.pop("key").decode()
            assert key not in out
            out[key] = (values, columns)
    return out


def of_litdata(found):
    """The same of LitData's chunks, as the index says where they are and which leaves their samples have."""
    out = {}
    told = json.loads(found["index.json"]) if "index.json" in found else {"chunks": []}
    for chunk in told["chunks"]:
        data = found[chunk["filename"]]
        assert len(data) == chunk["chunk_bytes"]
        names = json.loads(json.loads(told["config"]["data_spec"])[1]["context"])
        encodings = told["config"]["data_format"]
        n, *offsets = np.frombuffer(data, "<u4", chunk["chunk_size"] + 2).tolist()
        assert n == chunk["chunk_size"]
        for begin, end in itertools.pairwise(offsets):
            sizes = np.frombuffer(data, "<u4", len(names), begin).tolist()
            cuts = np.cumsum([begin + 4 * len(names), *sizes])
            assert cuts[-1] == end
            values = {name: data[cuts[i] : cuts[i + 1]] for i, name in enumerate(names)}
            for name, encoding in zip(names, encodings, strict=True):
                if encoding == "json" and values[name] != b"\x0b":
                    assert values[name][:5] == b"\0" + np.uint32(len(values[name]) - 5).tobytes()
                    values[name] = values[name][5:]
            columns = json.loads(values.pop("metadata", b"{}"))
            key = values.pop("key").decode()
            for name in json.loads(values.pop("absent", b"[]")):
                assert values.pop(name) in (b"", b"\x0b")
            assert key not in out
            out[key] = (values, columns)
    return out


def of_parquet(found):
    """The same of Parquet with the features of Hugging Face datasets, as DuckDB reads it."""
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = {}
    for name in sorted(found):
        if not name.endswith(".parquet"):
            continue
        ours = json.loads(pq.read_schema(pa.BufferReader(found[name])).metadata[b"penstock"])
        with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
            file.write(found[name])
            file.flush()
            rows = duckdb.sql(f"SELECT * FROM '{file.name}'").to_arrow_table().to_pylist()
        for row in rows:
            row = {column: value for column, value in row.items() if value is not None}
            key, fields = row.pop(ours["key"]), {}
            for column, field in ours["fields"].items():
                if column in row:
                    value = row.pop(column)
                    value = value["bytes"] if isinstance(value, dict) else value
                    fields[field] = value.encode() if isinstance(value, str) else value
            assert key not in out
            out[key] = (
                fields,
                {(ours["metadata"] | ours["source"])[column]: value for column, value in row.items()},
            )
    return out


def of_megatron(found):
    """The same of Megatron's files, whose names are the objects that the documents came from."""
    out = {}
    for name in sorted(found):
        if name.endswith(".idx"):
            n, n_bounds = np.frombuffer(found[name], "<u8", 2, 18).tolist()
            pointers = np.frombuffer(found[name], "<i8", n, 34 + 4 * n).tolist()
            bounds = np.frombuffer(found[name], "<i8", n_bounds, 34 + 12 * n).tolist()
            data = found[f"{name[:-4]}.bin"]
            cuts = [[*pointers, len(data)][at] for at in bounds]
            for i, (begin, end) in enumerate(itertools.pairwise(cuts)):
                out[f"{name[:-4]}/{i}"] = ({"tokens.u2": data[begin:end]}, {"raw_key": f"{name[:-4]}.bin"})
    return out


@pytest.fixture(scope="session")
def readers():
    """Format -> its reader: objects -> key -> (field -> bytes, column -> value)."""
    return {
        "energon": of_energon,
        "files": of_files,
        "litdata": of_litdata,
        "mds": of_mds,
        "megatron": of_megatron,
        "parquet": of_parquet,
        "webdataset": of_webdataset,
    }
