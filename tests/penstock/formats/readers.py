"""Readers of exports that are none of penstock: objects -> key -> (field -> bytes, column -> value)."""

import io
import json
import tarfile
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import webdataset


def of_webdataset(found):
    """Key -> (field -> bytes, column -> value), as the package of that name reads the archives."""
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


def of_files(found):
    """The same of single files and their table."""
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


def of_parquet(found):
    """The same of Parquet with the features of Hugging Face datasets, as DuckDB reads it."""
    import duckdb  # it says what it leaks when the process ends

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


READERS = {"files": of_files, "parquet": of_parquet, "webdataset": of_webdataset}
"""Format -> its reader."""
