"""What packing reads of a version, and the table that it leaves in the root."""

import io
import itertools
import logging
from dataclasses import replace

import google_crc32c
import numpy as np
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.tables.parquet import parse_table, table_bytes, table_facts
from loader.dataset.versions.documents import field_nbytes
from loader.dataset.versions.pack import piece_checks
from loader.errors import Corrupt, FieldNotFound, Forbidden, InvalidPlan, InvalidRuntime
from tests.proxy_stores import ProxyStore
from tests.refusals import ABSENT, refusal

FIELD = "tokens.npy"
LENGTHS = [5, 0, 17, 3, 40, 8, 8, 1, 2, 29, 16, 7, 12, 4, 4, 31]


def tokens(number, n, dtype=np.uint16):
    return (np.arange(n) + number).astype(dtype)


NULLS = len(range(0, len(LENGTHS), 2))
"""Documents whose metadata `n_or_null` is None."""


def write(root, lengths=LENGTHS, name="docs", first=0, **options):
    with root.write(name, groups={"wav": "audio"}, **{"part_samples": 5, **options}) as writer:
        for number, n in enumerate(lengths, first):
            writer.add(
                f"k{number:02d}",
                {FIELD: tokens(number, n), "txt": "x" * number, "wav": bytes(number)},
                metadata={
                    "n": n,
                    "half": n / 2,
                    "n_or_null": n if number % 2 else None,
                    "kind": "ab"[number % 2],
                },
            )
    return writer.version


def held(view):
    """key -> tokens in the table."""
    table = view.table
    pieces = table.pieces(np.arange(len(table)))
    counts = dict.fromkeys(pieces.document.tolist(), 0)
    for document, length in zip(pieces.document.tolist(), pieces.length.tolist(), strict=True):
        counts[document] += length
    keys = view.documents.keys(np.array(list(counts), np.int64))
    return dict(zip(keys, counts.values(), strict=True))


def by_key(lengths=LENGTHS, first=0):
    return {f"k{number:02d}": n for number, n in enumerate(lengths, first) if n}


def packed(view, length=16, **more):
    return view.packed(loader.pack(FIELD, length, **more))


def test_lengths_come_from_the_index(root):
    version = write(root)
    sizes = np.concatenate(list(field_nbytes(version, FIELD)))
    buffer = io.BytesIO()
    np.save(buffer, tokens(0, 40))
    assert sizes.max() == len(buffer.getvalue())
    keys = version.keys(np.arange(len(version)))
    assert {key: (n - 128) // 2 for key, n in zip(keys, sizes.tolist(), strict=True) if n > 128} == by_key()
    assert held(packed(version.select(FIELD))) == by_key()
    assert held(packed(version.select(FIELD), lengths="n")) == by_key()


def test_views_exclusions_and_missing_groups(root):
    write(root)
    root.exclude("docs@1", ["k04", "k10"], reason="bad")
    version = write(root, [6, 9], first=16)
    everything = by_key([*LENGTHS, 6, 9])
    live = {key: n for key, n in everything.items() if key not in ("k04", "k10")}
    assert held(packed(version.select(FIELD))) == live
    some = version.select(FIELD).where("n > 7 AND kind = 'a'")
    assert held(packed(some)) == {key: n for key, n in live.items() if n > 7 and int(key[1:]) % 2 == 0}
    later = root.add_group("docs@latest", "more", {"more.npy": lambda sample: np.arange(4)})
    assert held(packed(later.select(FIELD))) == live


def test_table_is_a_file_that_anybody_reads(root):
    view = packed(write(root).select(FIELD))
    (info,) = root.store.list("packs/")
    table = pq.read_table(io.BytesIO(root.store.get(info.key).data))
    assert table.column_names == ["sequence", "document", "start", "length"]
    rows = np.column_stack([column.to_numpy() for column in table.columns])
    assert np.array_equal(rows, view.table.rows(0, view.table.n_pieces))


def test_it_is_made_once_and_reads_one_document(root, stores):
    """The indexes, and of the shards the first document, for the dtype of all; then, beside what
    every version is opened with, the table."""
    write(root)
    root.store = stores.Counting(root.store)
    calls = []
    for _ in range(2):
        root.store.calls.clear()
        view = packed(root.open("docs@1").select(FIELD))
        counts = [root.store.calls[verb, "data"] for verb in ("get", "get_range", "get_ranges")]
        calls.append(counts)
        assert held(view) == by_key()
    parts = len(view.documents.version.parts)
    # Manifest and shards table; the indexes, and for the first document's place one of them; the document.
    # Then the manifest only: the first version still has the shards table open.
    assert calls == [[2, parts + 1, 1], [1, 0, 0]]


def test_plan_takes_a_view_that_its_own_request_packed(root, stores):
    """A caller that needs the number of sequences first does not read the table twice."""
    write(root)
    root.store = stores.Counting(root.store)
    view = root.open("docs@1").select(FIELD)
    request = loader.pack(FIELD, 16)
    packed_view = view.packed(request)
    options = {"seed": 1, "global_batch": 2}
    expected = loader.plan({"docs": view}, pack=request, **options)
    assert root.store.total > 0
    root.store.calls.clear()
    plan = loader.plan({"docs": packed_view}, pack=request, **options)
    assert plan.hash == expected.hash
    assert root.store.total == 0
    other = loader.pack(FIELD, 32)
    with refusal(InvalidPlan, what="source 'docs'", given=str(request), accepted=str(other)):
        loader.plan({"docs": packed_view}, pack=other, **options)


def test_root_that_cannot_be_written_only_costs_each_process_the_work(root, caplog):
    version = write(root)
    inner = root.store

    def refuse(*_):
        raise Forbidden("read-only")

    version.store = ProxyStore(inner, put_if_absent=refuse)
    with caplog.at_level(logging.WARNING, "loader.dataset.versions.pack"):
        view = packed(version.select(FIELD))
    assert "read-only here" in caplog.text
    assert held(view) == by_key()
    assert not list(inner.list("packs/"))


def test_table_that_was_stored_first_is_taken(root):
    """Two processes at once: both go on with one table."""
    version = write(root)
    inner = root.store
    other = packed(write(root, [4, 4], name="others").select(FIELD))
    (theirs,) = inner.list("packs/")
    table = parse_table(inner.get(theirs.key).data, theirs.key)
    facts = {name: said for name, said in table_facts(table).items() if name not in ("table", "schema")}

    def another_first(inner, key, mine):
        if key.startswith("packs/"):
            inner.put_if_absent(key, table_bytes(table, "pack", facts={**facts, "path": key}))
        inner.put_if_absent(key, mine)

    version.store = ProxyStore(inner, put_if_absent=another_first)
    assert packed(version.select(FIELD)).table.sha256 == other.table.sha256


@pytest.mark.parametrize(
    ("change", "what", "given"),
    [
        (lambda data: data[:-30], "table", ABSENT),
        (lambda data: rows_of([0, 2], [0, 1], [0, 0], [4, 4]), "sequence", [0, 2]),
        (lambda data: rows_of([1, 1], [0, 1], [0, 0], [4, 4]), "sequence", [1, 1]),
        (lambda data: rows_of([0, 0], [0, 16], [0, 0], [4, 4]), "document", 16),
        (lambda data: rows_of([0, 0], [0, -1], [0, 0], [4, 4]), "document", -1),
        (lambda data: rows_of([0, 0], [0, 1], [0, 0], [4, 13]), "length", 17),
        (lambda data: rows_of([0, 0], [0, 1], [0, -1], [4, 3]), "start", -1),
        (lambda data: rows_of([0, 0], [0, 1], [0, 1], [4, 0]), "length", 0),
        (lambda data: rows_of([0, 0], [0, 1], [0.5, 1], [4, 1]), "start", "float64"),
        (
            lambda data: columns(sequence=[0, 0], document=[0, 1], start=[0, 1]),
            *("columns", ["sequence", "document", "start"]),
        ),
        (lambda data: rows_of([0, 0], [0, 1], [0, 1], [4, 4]), "pieces", [0, 1]),
        (lambda data: rows_of([0], [0], [2**63 - 1], [4]), "pieces", [2**63 - 1]),
        (lambda data: rows_of([0, 0], [0, 1], [0, 0], [4, 4]), "dtypes", None),
        (lambda data: with_facts(data, {b"penstock.dtype": b"garbage"}), "dtypes", "garbage"),
        (lambda data: with_facts(data, {b"penstock.content_sha256": b"\xff" * 64}), "sha256", ABSENT),
        (
            lambda data: with_facts(data, {b"\xffpenstock.dtype": b""}, drop=b"penstock.dtype"),
            *("dtypes", None),
        ),
        (lambda data: without_its_last_row(data), "pieces", ABSENT),
    ],
)
def test_damaged_table_is_refused(tmp_path, change, what, given):
    with loader.Root(str(tmp_path)) as root:
        version = write(root)
        packed(version.select(FIELD))
        (info,) = root.store.list("packs/")
        path = tmp_path / info.key
        path.write_bytes(change(path.read_bytes()))
        with refusal(Corrupt, what=what, where=str(path), given=given):
            packed(root.open("docs@1").select(FIELD))


def without_its_last_row(data):
    """A sound file of one row less, as somebody's own tool would write it."""
    table = pq.read_table(io.BytesIO(data))
    sink = io.BytesIO()
    pq.write_table(table.slice(0, len(table) - 1), sink)
    return sink.getvalue()


def with_facts(data, facts, drop=b""):
    table = pq.read_table(io.BytesIO(data))
    metadata = {name: value for name, value in table.schema.metadata.items() if name != drop}
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({**metadata, **facts}), sink)
    return sink.getvalue()


def rows_of(sequence, document, start, length):
    return columns(sequence=sequence, document=document, start=start, length=length)


def columns(**values):
    import pyarrow as pa

    sink = io.BytesIO()
    pq.write_table(pa.table(values), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("fields", "asked", "what", "given", "accepted"),
    [
        ((FIELD, "txt"), {"field": FIELD}, "fields", (FIELD, "txt"), (FIELD,)),
        (("txt",), {"field": "txt"}, "field", "txt", "an .npy field, or a flat one"),
        ((FIELD,), {"field": FIELD, "lengths": "half"}, "lengths", "Float64", "whole numbers"),
    ],
)
def test_what_cannot_be_packed(root, fields, asked, what, given, accepted):
    view = write(root).select(*fields)
    with refusal(InvalidPlan, what=what, where="pack", given=given, accepted=accepted):
        view.packed(loader.pack(length=16, **asked))


@pytest.mark.parametrize(
    ("options", "what", "n", "missing"),
    [
        ({"lengths": "n_or_null"}, "lengths", 8, "n_or_null IS NULL"),
        ({"lengths": "n - 1"}, "lengths", 1, "n = 0"),
        ({"together": "n_or_null"}, "together", 8, "n_or_null IS NULL"),
    ],
)
def test_documents_without_a_value_are_counted_and_the_first_is_named(root, options, what, n, missing):
    view = write(root).select(FIELD)
    without = view.where(missing)
    (first,) = without.keys(without.version_ordinals(np.arange(1)))
    with refusal(InvalidPlan, what=what, where="pack", given=[n, first]):
        packed(view, **options)


@pytest.mark.parametrize(
    ("arrays", "what", "given", "accepted"),
    [
        ([np.zeros((2, 3), np.uint16)], FIELD, (2, 3), "one dimension"),
        ([np.zeros(3, np.float32)], FIELD, "float32", "whole numbers"),
        (
            [np.zeros(3, np.uint16), np.zeros(3, np.uint8)],
            "field",
            ABSENT,
            "arrays like the first document's",
        ),
    ],
)
def test_arrays_that_cannot_be_packed(root, arrays, what, given, accepted):
    with root.write("docs") as writer:
        for number, array in enumerate(arrays):
            writer.add(f"k{number}", {FIELD: array})
    with refusal(InvalidPlan, what=what, where="source 'd'", given=given, accepted=accepted):
        loader.plan({"d": writer.version}, seed=1, global_batch=1, pack=loader.pack(FIELD, 8))


def test_unknown_column_is_named(root):
    with refusal(FieldNotFound, what="pack(lengths='n_tokens')", where="docs@1", given=["n_tokens"]):
        packed(write(root).select(FIELD), lengths="n_tokens")


def test_view_without_samples(root):
    with refusal(InvalidPlan, what="view", where="pack", given=0):
        packed(write(root).select(FIELD).where("n > 99"))


def test_damaged_index_is_refused(tmp_path):
    with loader.Root(str(tmp_path)) as root:
        write(root)
        path = sorted(tmp_path.glob("data/*/*/media-*.index.parquet"))[0]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with refusal(Corrupt, what="its footer", where=str(path)):
            list(field_nbytes(root.open("docs@1"), FIELD))


def test_checksums_are_of_the_pieces_bytes(root):
    version = write(root)
    view = packed(version.select(FIELD), checksums=True)
    assert view.id == packed(version.select(FIELD)).id
    checks = piece_checks(view)
    documents, counts = view.table.longer_than(16)
    assert dict(zip(view.documents.keys(documents), counts.tolist(), strict=True)) == {
        key: n for key, n in by_key().items() if n > 16
    }
    addresses = version.address(documents, [FIELD])
    for address, data, n in zip(addresses, read_fields(root.store, addresses), counts.tolist(), strict=True):
        field = address.fields[FIELD]
        for number in range(-(-n // 16)):
            part = checks.part(address.ordinal, number, field)
            piece = data[FIELD][part.offset : part.offset + part.nbytes]
            assert piece == tokens(int(address.key[1:]), n)[16 * number : 16 * number + 16].tobytes()
            assert part.crc32c == google_crc32c.value(piece)
        assert checks.part(address.ordinal, 0, replace(field, crc32c=field.crc32c ^ 1)) is None
    short = set(range(len(version))) - set(documents.tolist())
    assert all(checks.part(document, 0, field) is None for document in (*short, 999))


@pytest.mark.parametrize("kind", ["where", "listed"])
def test_forged_table_of_documents_that_the_view_lacks_is_refused(tmp_path, kind):
    """Its own sha256 is right, and no plan has stated one yet: it could bring held-out documents into a training."""
    with loader.Root(tmp_path) as root:
        pairs = write_pairs(root)
        view, others = pairs.where("chosen"), pairs.where("NOT chosen")
        if kind == "listed":
            view, others = (loader.listed(pairs, ordinals) for ordinals in ([3, 1, 8], [4, 2, 9]))
        paths = []
        for each in (view, others):
            before = {info.key for info in root.store.list("packs/")}
            each.packed(loader.pack(FIELD, 32))
            (path,) = {info.key for info in root.store.list("packs/")} - before
            paths.append(path)
        own, forged = (tmp_path / path for path in paths)
        own.write_bytes(with_facts(forged.read_bytes(), {b"penstock.path": paths[0].encode()}))
        with refusal(Corrupt, what="document", where=str(own), accepted="documents of the view") as caught:
            view.packed(loader.pack(FIELD, 32))
        assert others.ordinals([caught.value.given]) >= 0
        own.unlink()
        assert len(view.packed(loader.pack(FIELD, 32)))


def test_damaged_checksums_are_refused(tmp_path):
    with loader.Root(str(tmp_path)) as root:
        view = packed(write(root).select(FIELD), checksums=True)
        (path,) = tmp_path.glob("packs/*.checks.parquet")
        for data, what, given in (
            (path.read_bytes()[:-9], "table", ABSENT),
            (columns(document=[1]), "columns", ["document"]),
        ):
            path.write_bytes(data)
            with refusal(Corrupt, what=what, where=str(path), given=given):
                piece_checks(view)


def test_tables_exchanged_are_refused(tmp_path):
    """Of packed sequences, and of checksums of their pieces: each is whole."""
    with loader.Root(str(tmp_path)) as root:
        views = [write(root, name=name).select(FIELD) for name in ("docs", "texts")]
        made = [packed(view, checksums=True) for view in views]
        for ending, read in ((".checks", lambda number: piece_checks(made[number])), ("", again(views))):
            paths = sorted(tmp_path.glob(f"packs/{'[0-9a-f]' * 64}{ending}.parquet"))
            assert len(paths) == 2
            first, second = (path.read_bytes() for path in paths)
            paths[0].write_bytes(second)
            paths[1].write_bytes(first)
            for number in (0, 1):
                with refusal(Corrupt, what="path") as caught:
                    read(number)
                names = {caught.value.given, caught.value.accepted}
                assert names == {str(path.relative_to(tmp_path)) for path in paths}
                assert caught.value.where.endswith(caught.value.accepted)


def again(views):
    return lambda number: packed(views[number])


def test_sequence_is_named_by_its_number(root):
    view = packed(write(root).select(FIELD))
    assert view.keys(np.array([0, 12])) == ["sequence-000000000000", "sequence-000000000012"]
    assert view.ordinals(["k03", "nothing"]).tolist() == [
        view.documents.ordinals(["k03"])[0],
        -1,
    ]
    assert repr(view).startswith("PackedView(View(")
    assert view.mean_sample_bytes == 32
    with pytest.raises(InvalidRuntime):
        view.documents.version.address(np.array([999]), [FIELD])


@pytest.mark.parametrize("checksums", [False, True])
def test_flat_tokens_are_packed_as_those_with_a_header(root, checksums):
    with root.write("flat", part_samples=5) as writer:
        for number, n in enumerate(LENGTHS):
            writer.add(f"k{number:02d}", {"tokens.u2": tokens(number, n).tobytes(), FIELD: tokens(number, n)})
    delivered = []
    for field in ("tokens.u2", FIELD):
        pack = loader.pack(field, 16, checksums=checksums)
        plan = loader.plan({"d": root.open("flat").select(field)}, seed=1, global_batch=3, pack=pack)
        with loader.Loader(plan) as batches:
            delivered.append([next(batches)[field].tolist() for _ in range(4)])
    assert delivered[0] == delivered[1]


def write_pairs(root):
    """Twelve pairs, whose documents are far apart, and a document without tokens."""
    with root.write("pairs", part_samples=5) as writer:
        for number in range(24):
            pair = number % 12
            n = 0 if number == 5 else 1 + number % 7
            metadata = {"pair_id": f"p{pair}", "number": pair, "share": pair / 3, "chosen": number < 12}
            writer.add(f"k{number:02d}", {FIELD: tokens(number, n)}, metadata=metadata)
    return writer.version.select(FIELD)


def groups_in_sequences(view, column):
    """Sequence -> values of the column, document by document."""
    table = view.table
    values = view.documents.version.samples().select(column).collect().to_series()
    pieces = table.pieces(np.arange(len(table)))
    rows = {}
    for row, document in zip(pieces.row.tolist(), pieces.document.tolist(), strict=True):
        rows.setdefault(row, []).append(values[document])
    return rows


@pytest.mark.parametrize(
    "rows",
    [
        {"sequence": [0, 0], "document": [0, 0], "start": [0, 4], "length": [4, 4]},
        {"sequence": [0], "document": [0], "start": [1], "length": [4]},
    ],
    ids=["a document in two pieces", "a piece that begins later"],
)
def test_table_that_splits_a_document_of_a_group_is_refused(tmp_path, rows):
    with loader.Root(tmp_path) as root:
        view = write_pairs(root)
        packed(view, together="pair_id")
        (info,) = root.store.list("packs/")
        (tmp_path / info.key).write_bytes(columns(**rows))
        given = rows["start"]
        with refusal(Corrupt, what="pieces", where=str(tmp_path / info.key), given=given):
            packed(view, together="pair_id")


@pytest.mark.parametrize("column", ["pair_id", "number"])
def test_documents_of_a_group_are_neighbours_in_one_sequence(root, column):
    view = packed(write_pairs(root), together=column)
    sequences = groups_in_sequences(view, column)
    places = {}
    for row, values in sequences.items():
        for value in values:
            places.setdefault(value, set()).add(row)
        n_changes = sum(value != following for value, following in itertools.pairwise(values))
        assert n_changes == len(set(values)) - 1
    assert len(places) == 12
    assert all(len(rows) == 1 for rows in places.values())
    assert view.table.n_tokens == sum(1 + number % 7 for number in range(24) if number != 5)


def test_groups_are_loaded_from_the_root_and_named_by_the_request(root):
    view = write_pairs(root)
    first = packed(view, together="pair_id")
    again = packed(root.open("pairs").select(FIELD), together="pair_id")
    assert again.table.sha256 == first.table.sha256
    requests = ({}, {"together": "pair_id"}, {"together": "chosen"})
    tables = {packed(view, length=64, **more).table.sha256 for more in requests}
    assert len(tables) == 3
    assert len(list(root.store.list("packs/"))) == 4


def test_documents_stay_whole_without_split(root):
    view = packed(write(root).select(FIELD), length=40, split=False)
    pieces = view.table.pieces(np.arange(len(view)))
    assert sorted(pieces.length.tolist()) == sorted(n for n in LENGTHS if n)
    assert pieces.start.tolist() == [0] * len(pieces)
    assert view.table.sha256 == packed(write(root, name="again").select(FIELD), length=40).table.sha256


@pytest.mark.parametrize(
    ("more", "what", "given", "accepted"),
    [
        ({"split": False}, "length", 4, "documents of at most 16 tokens"),
        ({"together": "kind"}, "length", 2, "documents of at most 16 tokens"),
        ({"together": "n_or_null"}, "together", [NULLS, "k10"], "a value for each document"),
        ({"together": "half"}, "together", "Float64", "texts, whole numbers or truth values"),
        ({"together": ""}, "together", "", "the name of a column"),
        ({"split": 0}, "split", 0, [True, False]),
        ({"split": False, "checksums": True}, "checksums", True, "split documents"),
        ({"together": "kind", "checksums": True}, "checksums", True, "split documents"),
    ],
)
def test_groups_that_do_not_fit_are_refused(root, more, what, given, accepted):
    view = write(root).select(FIELD)
    with refusal(InvalidPlan, what=what, given=given, accepted=accepted):
        packed(view, **more)
    assert list(root.store.list("packs/")) == []


def test_together_needs_a_column_that_is_there(root):
    with refusal(FieldNotFound, what="pack(together='pair')", where="docs@1", given=["pair"]):
        packed(write(root).select(FIELD), together="pair")


@pytest.mark.parametrize("pattern", ["*", "^k.*$"])
def test_together_takes_no_pattern_of_columns(root, pattern):
    with refusal(
        FieldNotFound, what=f"pack(together={pattern!r})", given=f'"{pattern}"', accepted="one column"
    ):
        packed(write(root).select(FIELD), together=pattern)


def test_number_of_tokens_beyond_the_table_names_the_document(root):
    view = write(root).select(FIELD)
    with refusal(InvalidPlan, what="lengths", where="document 'k01'", given=2**32, accepted=2**32 - 1):
        packed(view, lengths="4294967296 - n", length=2**24)


def test_plan_of_groups_has_the_next_format_and_opens_again(root):
    view = write_pairs(root)
    plain = loader.plan({"pairs": view}, seed=7, global_batch=1, pack=loader.pack(FIELD, 16))
    grouped = loader.plan(
        {"pairs": view}, seed=7, global_batch=1, pack=loader.pack(FIELD, 16, together="pair_id")
    )
    assert (plain.to_json()["format"], grouped.to_json()["format"]) == (1, 2)
    assert grouped.to_json()["sources"]["pairs"]["view"]["together"] == "pair_id"
    grouped.save(root)
    again = loader.open_plan(root, grouped.hash)
    assert again.to_json() == grouped.to_json()
    with loader.Loader(again, 0, 1, steps=4, framework="numpy") as batches:
        read = [batch[FIELD] for batch in batches]
    assert all(batch.shape == (1, 16) for batch in read)
