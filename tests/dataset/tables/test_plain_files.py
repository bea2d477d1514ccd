"""Plain files: polars and DuckDB read every table, any JSON reader the manifest."""

import json

import numpy as np
import pytest

import loader


@pytest.fixture
def part_root(tmp_path):
    root = loader.Root(tmp_path)
    with root.write("d", part_samples=4) as writer:
        for i in range(10):
            writer.add(
                f"k{i}", {"cls": i}, metadata={"w": i, "tags": ["a"], "s": str(i)}, source={"raw_uri": "u"}
            )
    root.add_group("d", "g", {"t.txt": lambda sample: "x"})
    root.exclude("d", ["k1", "k2"], reason="x")
    return root


def files(root, kind):
    """(absolute path, rows) of the newest version's files of a kind."""
    manifest = json.loads(root.store.get(root.record("d").manifest).data)
    return [(f"{root.url}/{entry['path']}", entry["n_rows"]) for entry in manifest[kind]]


@pytest.mark.parametrize("kind", ["shards", "samples", "stats", "exclusions"])
def test_duckdb_and_polars_count_the_same(part_root, kind):
    import duckdb
    import polars

    found = files(part_root, kind)
    assert found
    for path, n_rows in found:
        ((count,),) = duckdb.sql(f"SELECT count(*) FROM '{path}'").fetchall()
        assert count == n_rows == polars.read_parquet(path).height
        for name, dtype in polars.read_parquet_schema(path).items():
            assert not dtype.is_unsigned_integer(), name


def test_duckdb_joins_samples_with_exclusions_as_the_loader_does(part_root):
    """The whole of `where`, without a line of ours."""
    import duckdb

    keys, metadata = (path for path, _ in files(part_root, "samples"))
    (gone,) = (path for path, _ in files(part_root, "exclusions"))
    excluded = {
        (part, row)
        for part, bitmap, n in duckdb.sql(f"SELECT part, bitmap, n_rows FROM '{gone}'").fetchall()
        for row in range(n)
        if bitmap[row // 8] >> row % 8 & 1
    }
    rows = duckdb.sql(
        f"SELECT part, row, key FROM '{keys}' JOIN '{metadata}' USING (part, row) WHERE w >= 1"
    ).fetchall()
    view = part_root.open("d").where("w >= 1")
    expected = set(view.keys(view.version_ordinals(np.arange(len(view)))))
    assert {key for part, row, key in rows if (part, row) not in excluded} == expected
    assert len(expected) == 7


def test_index_points_into_a_tar_for_anybody(part_root):
    import duckdb
    import polars

    shards = polars.concat(polars.read_parquet(path) for path, _ in files(part_root, "shards"))
    for shard in shards.filter(polars.col("group") == "media").to_dicts():
        tar = (part_root.url + "/" + shard["path"]).encode()
        with open(tar, "rb") as file:
            data = file.read()
        index = f"{part_root.url}/{shard['index_path']}"
        for key, offset, nbytes in duckdb.sql(
            f"SELECT key, cls_offset, cls_nbytes FROM '{index}'"
        ).fetchall():
            assert data[offset : offset + nbytes] == key[1:].encode()


def test_every_table_says_what_it_is(part_root):
    import pyarrow.parquet as pq

    for kind in ("shards", "samples", "stats", "exclusions"):
        for path, _ in files(part_root, kind):
            metadata = pq.read_schema(path).metadata
            assert metadata[b"penstock.table"].decode().startswith(kind)
            assert metadata[b"penstock.schema"] == b"1"


def test_manifest_is_canonical_and_its_hash_is_the_id(part_root):
    import hashlib

    for record in part_root.versions("d"):
        data = part_root.store.get(record.manifest).data
        assert record.id == "v-" + hashlib.sha256(data).hexdigest()
        again = json.dumps(json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert again.encode() == data


def test_no_stored_path_leaves_the_root(part_root, tmp_path_factory):
    """A copy of the folder is the same root: same ids, same samples."""
    import shutil

    copy = tmp_path_factory.mktemp("mirror") / "root"
    shutil.copytree(part_root.url, copy)
    again = loader.Root(copy)
    assert [r.id for r in again.versions("d")] == [r.id for r in part_root.versions("d")]
    shutil.rmtree(part_root.url)
    version = again.open("d")
    from loader.dataset.reading.verified_bucket_reads import read_fields

    addresses = version.address(np.arange(8), ["cls", "t.txt"])
    assert {row["cls"] for row in read_fields(version.store, addresses)} == {
        b"%d" % i for i in (0, *range(3, 10))
    }
