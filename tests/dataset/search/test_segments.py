"""Segments of derived values: round trip, forged files, parts of versions, and merging."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.search.segment_reads import coverage, merge_segments, read_segment
from loader.dataset.search.segments import (
    SegmentKind,
    SegmentPart,
    content_digest,
    list_segments,
    put_segment,
    segment_bytes,
    version_parts,
)
from loader.errors import Corrupt
from tests.refusals import refusal

FOLDER = "search/0123456789abcdef/"
CODES = SegmentKind(name="codes", columns=pa.schema([("code", pa.binary(4))]), most_value_bytes=4)
TEXTS = SegmentKind(name="texts", columns=pa.schema([("text", pa.string())]), most_value_bytes=512)
PLACES = SegmentKind(
    name="",
    columns=pa.schema([("x", pa.uint16()), ("cluster_cosine", pa.float16())]),
    most_value_bytes=8,
)


@pytest.fixture
def root(tmp_path):
    root = loader.Root(tmp_path / "root")
    for start in (0, 12):
        with root.write("d", part_samples=5) as writer:
            for i in range(start, start + 12):
                writer.add(f"k{i:02d}", {"txt": f"cup {i}"}, {"w": i})
    return root


def values(kind, parts, seed=0):
    """Random values with a null in the middle."""
    rng = np.random.default_rng(seed)
    n = sum(part.n_rows for part in parts)
    columns = {}
    for field in kind.columns:
        if pa.types.is_string(field.type):
            column = [f"text {number}" for number in rng.integers(0, 1000, n)]
        elif pa.types.is_fixed_size_binary(field.type):
            column = [rng.bytes(field.type.byte_width) for _ in range(n)]
        else:
            column = list(rng.integers(0, 100, n).astype(field.type.to_pandas_dtype()))
        column[n // 2] = None
        columns[field.name] = pa.array(column, field.type)
    return pa.table(columns)


@pytest.mark.parametrize("kind", [CODES, TEXTS, PLACES])
def test_segment_is_read_as_it_was_written(root, kind):
    parts = [part.own for part in version_parts(root.open("d"), "txt")]
    table = values(kind, parts)
    path = put_segment(root.store, FOLDER, kind, parts, table)
    segment = read_segment(root.store, path, kind)
    assert segment.values.equals(table)
    assert list(segment.parts) == parts
    assert segment.starts.tolist() == [0, 5, 10, 12, 17, 22, 24]
    stored = pq.read_table(io.BytesIO(root.store.get(path).data))
    assert stored.column_names == ["part", "row", *kind.columns.names]
    assert stored["row"].to_pylist()[:7] == [0, 1, 2, 3, 4, 0, 1]
    chunked = pa.concat_tables([table.slice(0, 7), table.slice(7)])
    assert segment_bytes(FOLDER, kind, parts, chunked) == segment_bytes(FOLDER, kind, parts, table)
    assert content_digest(kind, parts, chunked) == content_digest(kind, parts, table)


def test_coverage_of_an_extended_version_lacks_only_its_new_parts(root):
    first = version_parts(root.open("d@1"), "txt")
    own = [part.own for part in first]
    path = put_segment(root.store, FOLDER, CODES, own, values(CODES, own))
    newest = version_parts(root.open("d@2"), "txt")
    covered = coverage(root.store, FOLDER, CODES, newest)
    assert list(covered.segments) == [path]
    assert [part.position for part in covered.missing] == [3, 4, 5]
    assert coverage(root.store, FOLDER, CODES, first).missing == ()
    assert coverage(root.store, FOLDER, CODES, newest, [path]).segments == {}


def test_segment_of_rewritten_parts_is_not_used(root):
    parts = version_parts(root.open("d"), "txt")
    before = [part.own._replace(source=part.own.source.replace("media", "other")) for part in parts]
    put_segment(root.store, FOLDER, CODES, before, values(CODES, before))
    assert len(coverage(root.store, FOLDER, CODES, parts).missing) == len(parts)


def test_version_with_parts_of_another_transaction_finds_merged_segments(root):
    parts = version_parts(root.open("d"), "txt")
    own = [part.own for part in parts]
    path = put_segment(root.store, FOLDER, CODES, own, values(CODES, own))
    later = parts[3:]  # without a part of the transaction in the segment's name
    covered = coverage(root.store, FOLDER, CODES, later)
    assert list(covered.segments) == [path]
    assert covered.missing == ()


def test_merged_segments_have_the_values_of_each_part_once(root):
    parts = [part.own for part in version_parts(root.open("d"), "txt")]
    segments = []
    for number in (0, 1, 2, 3, 4, 5, 2):
        part = [parts[number]]
        path = put_segment(root.store, FOLDER, TEXTS, part, values(TEXTS, part, seed=number))
        segments.append(read_segment(root.store, path, TEXTS))
    ((path, data),) = merge_segments(segments, FOLDER, TEXTS)
    assert ((path, data),) == tuple(merge_segments(segments, FOLDER, TEXTS))
    root.store.put_if_absent(path, data)
    merged = read_segment(root.store, path, TEXTS)
    assert list(merged.parts) == parts
    assert merged.values.equals(pa.concat_tables([one.values for one in segments[:6]]).combine_chunks())
    assert list_segments(root.store, FOLDER, TEXTS)[0].key == path


def change_columns(data, **columns):
    """Return a segment's bytes with other columns under the same footer facts."""
    table = pq.read_table(io.BytesIO(data))
    for name, column in columns.items():
        table = table.set_column(
            table.column_names.index(name), name, pa.array(column, table.schema.field(name).type)
        )
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def drop_rows(data, n):
    """Return a segment's bytes without its last n rows, whose footer still states the number of rows before."""
    table = pq.read_table(io.BytesIO(data))
    sink = io.BytesIO()
    pq.write_table(table.slice(0, len(table) - n), sink)
    short = sink.getvalue()
    # Thrift's compact form: field 3, an i64, as zigzag. The file's number comes before that of its row group.
    head, separator, tail = short.rpartition(b"PAR1")[0].partition(bytes([0x16, 2 * (len(table) - n)]))
    assert separator
    return head + bytes([0x16, 2 * len(table)]) + tail + b"PAR1"


def test_forged_segments_are_left_out_and_named(root):
    parts = version_parts(root.open("d"), "txt")
    own = [part.own for part in parts]
    path, data = segment_bytes(FOLDER, CODES, own, values(CODES, own))
    flipped = bytearray(data)
    flipped[40] ^= 1
    forgeries = {
        "flipped": bytes(flipped),
        "code": change_columns(data, code=[b"abcd"] * 24),
        "row": change_columns(data, row=list(range(24))),
        "part": change_columns(data, part=["x"] * 24),
        "rows": drop_rows(data, 2),
        "short": data[:-9],
        "empty": b"",
        "no Parquet": b"x" * 4000,
    }
    # Values are compared by their digest, rows and parts with the footer, and Parquet refuses the rest.
    faults = {"code": "sha256", "row": "row", "part": "part", "rows": "rows"}
    for name, forged in forgeries.items():
        root.store.put(path, forged)
        with refusal(Corrupt, what=faults.get(name, "segment"), where=path):
            read_segment(root.store, path, CODES)
    # A file under another name has the values of another.
    other = f"{FOLDER}t-0000000000000000.codes.parquet"
    root.store.put(other, data)
    covered = coverage(root.store, FOLDER, CODES, parts)
    assert sorted(covered.damaged) == sorted([path, other])
    assert len(covered.missing) == len(parts)


def test_segment_that_states_more_than_it_has_is_refused_before_it_is_decompressed(root):
    parts = [SegmentPart("p", "data/t/a/media.index.parquet", 100_000)]
    path, plain = segment_bytes(FOLDER, TEXTS, parts, pa.table({"text": ["cup " * 250] * 100_000}))
    small = change_columns(plain)  # of one text, repeated by number
    assert len(small) < 2**20
    for data, what in ((plain, "values"), (small, "texts")):
        root.store.put(path, data)
        with refusal(Corrupt, what=what, where=path, accepted=77_848_576):
            read_segment(root.store, path, TEXTS)
