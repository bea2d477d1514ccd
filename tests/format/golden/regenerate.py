"""Writes format-<n>.json: the bytes that a fixed small dataset becomes.

    python tests/format/golden/regenerate.py

A golden file that exists is never overwritten: when the bytes of a shard, an index or a view change, raise
FORMAT in loader/dataset/log/marker.py, keep reading the old format, and run this to add a file. Parquet files are
described by their columns, not by their bytes: those name the writer's version.
"""

import hashlib
import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import loader
from loader.dataset.log.marker import FORMAT
from loader.dataset.names import key_hash
from loader.dataset.shards.index import IndexFile, IndexPlace
from loader.dataset.tables.stats import bottom_k, log_bins

HERE = Path(__file__).parent
_numbers = itertools.count()


def samples():
    """key -> (fields, metadata, source): every kind of name and value that the format has a rule for."""
    keys = [
        "a",
        "cats/001",
        "ü/ö",
        "p" * 120,
        "d" * 80 + "/" + "e" * 60,
        "q/" * 60 + "r",
        "x y",
        *map(str, range(9)),
    ]
    for i, key in enumerate(keys):
        fields = {
            "cls": i - 3,
            "json": {"z": 1, "a": [i, None, "é"]},
            "txt": f"line {i}\n",
            "x.npy": np.arange(i, dtype=np.int16).reshape(1, i),
            "e.bin": b"",
        }
        metadata = {"w": i, "f": i / 4, "s": "ab"[i % 2], "t": i % 3 == 0} if i else {}
        yield key, fields, metadata, {"raw_uri": f"s3://raw/{i}"} if i % 2 else {}


def write(url):
    """The root with that dataset: two groups, parts of six, one more group, two exclusions."""
    root = loader.Root(url)
    txn = root.begin("golden", txn="0" * 32)
    everything = sorted(samples(), key=lambda sample: key_hash(sample[0]))
    parts = [
        loader.write_part(root, txn, some, groups={"cls": "labels"}, name=f"{k:05d}")
        for k, some in enumerate(sixes(everything))
    ]
    root.publish("golden", parts)
    root.add_group("golden", "more", {"len.cls": lambda sample: len(sample["txt"])})
    root.exclude("golden", ["a", "3"], reason="golden")
    return root


def sixes(items):
    return [items[i : i + 6] for i in range(0, len(items), 6)]


def golden():
    """What format-<n>.json holds."""
    root = write(f"memory://golden-{next(_numbers)}")
    version = root.open("golden")
    view = version.where("w >= 3 AND s = 'a'")
    return {
        "format": FORMAT,
        "keys in order": version.keys(np.arange(len(version))),
        "shards": [shard(version, row) for row in version.parts.shard_rows().to_pylist()],
        "groups": version.manifest["groups"],
        "columns": version.manifest["columns"],
        "tables": {kind: [schema(root, entry) for entry in version.manifest[kind]] for kind in KINDS},
        "exclusions": exclusions(root, version),
        "view": [view.version_ordinals(np.arange(len(view))).tolist(), view._table.packed().hex()],
        "log bins": log_bins(np.array([0, 1, -1, 0.1, 12.5, -1e9, 5e-324, 1e300])).tolist(),
        "bottom k": bottom_k([f"k{i}" for i in range(20)], 5),
        "key hashes": key_hashes(root, version),
    }


KINDS = ("shards", "samples", "stats", "exclusions")


def shard(version, row):
    index = IndexFile(version.store, IndexPlace.of(row)).read_group(0)
    places = {
        field: [
            list(place)
            for place in zip(
                index.offset[field].tolist(),
                index.nbytes[field].tolist(),
                index.crc32c[field].tolist(),
                strict=True,
            )
        ]
        for field in index.offset
    }
    what = {name: row[name] for name in ("part", "group", "nbytes", "sha256", "n_rows")}
    assert hashlib.sha256(version.store.get(row["path"]).data).hexdigest() == row["sha256"]
    return {
        **what,
        "name": row["path"].rpartition("/")[2],
        "keys": index.keys,
        "offset nbytes crc32c": places,
    }


def schema(root, entry):
    data = root.store.get(entry["path"]).data
    import io

    found = pq.read_schema(io.BytesIO(data))
    return {
        "name": entry["path"].rpartition("/")[2],
        "n_rows": entry["n_rows"],
        "columns": [[field.name, str(field.type)] for field in found],
        "metadata": {k.decode(): v.decode() for k, v in found.metadata.items() if k.startswith(b"penstock")},
    }


def exclusions(root, version):
    import io

    (entry,) = version.manifest["exclusions"]
    rows = pq.read_table(io.BytesIO(root.store.get(entry["path"]).data)).to_pylist()
    return [{**row, "bitmap": row["bitmap"].hex()} for row in rows]


def key_hashes(root, version):
    import io

    (entry,) = version.manifest["key_hashes"]
    table = pq.read_table(io.BytesIO(root.store.get(entry["path"]).data))
    return {
        "entry": sorted(entry),
        "metadata": {
            k.decode(): v.decode() for k, v in table.schema.metadata.items() if k.startswith(b"penstock")
        },
        "hash": table["hash"].to_pylist(),
    }


def main():
    path = HERE / f"format-{FORMAT}.json"
    if path.exists():
        print(f"{path} exists: golden files are never overwritten. Raise FORMAT for another format.")
        return 1
    path.write_text(json.dumps(golden(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
