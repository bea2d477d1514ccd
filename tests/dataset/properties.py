"""Properties of the format: functions that raise AssertionError."""

import hashlib
import io
import itertools
import tarfile

import numpy as np
import pyarrow as pa

from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.shards import bitmap, parts_table
from loader.dataset.shards.index import IndexFile, IndexPlace
from loader.dataset.shards.numbered_rows import ShardRows
from loader.dataset.shards.shards_file import ShardsFile
from loader.dataset.tables.parquet import table_bytes
from loader.dataset.writing import spill
from loader.dataset.writing.part_writer import PartWriter, group_chooser, make_sample
from loader.dataset.writing.run_tables import shards_table
from loader.storage import open_store

_numbers = itertools.count()


def fresh_url():
    return f"memory://properties-{next(_numbers)}"


# shards


def make_shard(samples, memory_bytes=2**20):
    """(tar bytes, index rows by key) of samples {key: {field: bytes}} written as one part."""
    store = open_store(fresh_url())
    spilled = spill.Spill(memory_bytes=memory_bytes)
    writer = PartWriter(store, txn="t", attempt="a", name="00000", group_of=group_chooser("media", None))
    try:
        for key, fields in samples.items():
            spilled.add(make_sample(key, fields))
        for sample in spilled.drain():
            writer.add(sample)
        part = writer.finish()
    finally:
        writer.close()
        spilled.close()
    (shard,) = part.shards
    (row,) = shards_table([shard]).to_pylist()
    index = IndexFile(store, IndexPlace.of(row))
    data = store.get(shard.path).data
    assert hashlib.sha256(data).hexdigest() == shard.sha256
    assert len(data) == shard.nbytes
    rows = [index.read_group(g) for g in range(index.row_group_number(index.n_rows - 1) + 1)]
    return data, rows


def tar_holds(samples, memory_bytes=2**20):
    """tarfile finds every sample's fields with their bytes, one sample after the other, in a plain archive; the
    index points at the payloads."""
    import google_crc32c

    data, rows = make_shard(samples, memory_bytes)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
        found = {member.name: archive.extractfile(member).read() for member in members}
    assert len(members) == len(found)
    assert found == {
        f"{key}.{field}": payload for key, fields in samples.items() for field, payload in fields.items()
    }
    for member in members:
        assert (member.mode, member.uid, member.gid, member.mtime) == (0o644, 0, 0, 0)
        assert (member.uname, member.gname, member.type) == ("", "", tarfile.REGTYPE)
    keys = [key for group in rows for key in group.keys]
    names = [f"{key}.{field}" for key in keys for field in sorted(samples[key])]
    assert [member.name for member in members] == names
    for group in rows:
        for field, offsets in group.offset.items():
            for i, key in enumerate(group.keys):
                at, nbytes = int(offsets[i]), int(group.nbytes[field][i])
                assert data[at : at + nbytes] == samples[key][field]
                assert int(group.crc32c[field][i]) == google_crc32c.value(samples[key][field])


# sets of rows


def make_parts(n_rows, excluded):
    """A PartsTable of parts p0, p1 ...; excluded: (part, bools) pairs, several per part allowed."""
    shards = pa.table(
        {
            "part": pa.array([f"p{i}" for i in range(len(n_rows))], pa.string()),
            "group": pa.array(["media"] * len(n_rows), pa.string()),
            "n_rows": pa.array(n_rows, pa.int64()),
        }
    )
    gone = [
        pa.Table.from_pylist(
            [
                {
                    "part": f"p{part}",
                    "bitmap": bitmap.pack(members),
                    "n_rows": len(members),
                    "reason": "",
                }
            ],
            schema=parts_table.EXCLUSIONS_SCHEMA,
        )
        for part, members in excluded
    ]
    rows = ShardRows([ShardsFile("test@1", table_bytes(shards, "shards"))])
    return parts_table.PartsTable(rows, gone, "test@1")


def locate_finds_live_rows(n_rows, excluded):
    """`locate` counts live rows only, in the order of the parts."""
    parts = make_parts(n_rows, excluded)
    live = [np.ones(n, bool) for n in n_rows]
    for part, members in excluded:
        live[part] &= ~members
    expected = [(part, row) for part, rows in enumerate(live) for row in np.flatnonzero(rows).tolist()]
    ordinals = np.random.default_rng(0).permutation(len(expected))
    part, row = parts.locate(ordinals.astype(np.int64))
    assert list(zip(part.tolist(), row.tolist(), strict=True)) == [expected[i] for i in ordinals]
    every = [(part, row) for part, rows in enumerate(live) for row in range(len(rows))]
    number = {place: ordinal for ordinal, place in enumerate(expected)}
    shuffled = np.random.default_rng(1).permutation(every).astype(np.int64)
    found = parts.live_ordinals(shuffled[:, 0], shuffled[:, 1])
    assert found.tolist() == [number.get((part, row), -1) for part, row in shuffled.tolist()]
    assert parts.n_live.tolist() == [int(rows.sum()) for rows in live]
    for position, rows in enumerate(live):
        assert np.array_equal(parts.live_members(position), rows)


# statistics


# versions


def content(version):
    """key -> {field: bytes} of every live sample, by address and read_fields; and that keys() agrees."""
    ordinals = np.arange(len(version), dtype=np.int64)
    out = {}
    for group in sorted(version.manifest["groups"]):
        fields = sorted(version.manifest["groups"][group]["field_nbytes"])
        view = version.select(*fields, where_present=True)
        there = view.version_ordinals(np.arange(len(view), dtype=np.int64))
        addresses = version.address(there, fields)
        for address, data in zip(addresses, read_fields(version.store, addresses), strict=True):
            out.setdefault(address.key, {}).update(data)
    assert len(out) == len(version)
    assert set(version.keys(ordinals)) == set(out)
    return out


def overtaken(root, part, overtake):
    """Publish `part` while `overtake` runs between its uploads and its commit."""
    from loader.dataset.publishing import commit as publish

    build_child, ran = publish.child, []

    def child(*args, **kwargs):
        body = build_child(*args, **kwargs)
        if not ran:
            ran.append(True)
            overtake()
        return body

    publish.child = child
    try:
        return root.publish("d", [part])
    finally:
        publish.child = build_child


def one(root, key):
    with root.write("d") as writer:
        writer.add(key, {"cls": 1})


def catch_error(error, action):
    """The error that `action` raises; AssertionError when it raises none."""
    try:
        action()
    except error as found:
        return found
    raise AssertionError(f"no {error.__name__} was raised")
