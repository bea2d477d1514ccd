"""Pieces of documents, copied and numbered: C and Python agree on each byte and each error."""

import os

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import loader.native
from loader.modalities.array import encode, rows_head
from loader.native import RIGHT, WRONG, python

VERBS = [python]
if loader.native.KIND != "Python":
    from loader.native import _native

    VERBS.append(_native)
each = pytest.mark.parametrize("verbs", VERBS, ids=lambda verbs: verbs.__name__.rpartition(".")[2])
DTYPES = ("|b1", "<u2", "<i4", "<f8")
alike = settings(
    deadline=None,
    max_examples=int(os.environ.get("NATIVE_EXAMPLES", settings().max_examples)),
)


def int64(*numbers):
    return np.array(numbers, np.int64)


@st.composite
def copies(draw):
    """Arguments of `copy_pieces` but `into` and `status`, and bytes of `into`; perhaps wrong or damaged ones."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.sampled_from([(), (3,)]))
    field = draw(st.sampled_from(["tokens.npy", "tokens.u2"]))
    has_head = field == "tokens.npy"
    row_nbytes = dtype.itemsize * int(np.prod(shape))
    rows = draw(st.lists(st.sampled_from([0, 1, 7, 9, 10, 11, 99, 100, 1000]), max_size=5))
    files = []
    for number, n in enumerate(rows):
        values = (np.arange(n * row_nbytes, dtype=np.uint8) + number).view(dtype).reshape(n, *shape)
        file = values.tobytes()
        if has_head:
            file = encode(field, values)
        files.append(file)
    sizes = [len(file) for file in files]
    memory = np.frombuffer(b"".join(files), np.uint8).copy()
    begin = np.cumsum([0, *sizes])[:-1].astype(np.int64)
    first = int64(*[draw(st.integers(0, n)) for n in rows])
    length = int64(*[draw(st.integers(0, n - begin_row)) for n, begin_row in zip(rows, first, strict=True)])
    at = (np.cumsum([0, *length.tolist()])[:-1]).astype(np.int64)
    columns = {"begin": begin, "nbytes": int64(*sizes), "rows": int64(*rows), "first": first}
    columns |= {"length": length, "at": at}
    head = rows_head(field, dtype, shape)

    for _ in range(draw(st.integers(0, 3))):  # damaged bytes, most of them in a header
        if rows:
            document = draw(st.integers(0, len(rows) - 1))
            offset = int(begin[document]) + draw(st.integers(0, 140))
            if offset < len(memory):
                memory[offset] = draw(st.integers(0, 255) | st.sampled_from(b" \n0(,"))
    if rows and draw(st.booleans()):
        column = draw(st.sampled_from(list(columns.values())))
        extreme = st.sampled_from([2**62, -(2**62), 2**63 - 1, -(2**63)])
        column[draw(st.integers(0, len(rows) - 1))] = draw(st.integers(-2, 1200) | extreme)
    if draw(st.integers(0, 4)) == 0:
        before, after, nbytes = head
        head = (before, after, nbytes + draw(st.integers(-130, 5)))
    room = int(max(0, length.sum())) * row_nbytes + draw(st.integers(0, 9))
    return memory, *columns.values(), head, row_nbytes, min(room, 10**6)


@alike
@given(arguments=copies())
def test_copies_are_the_same_in_c_and_in_python(arguments):
    *copied, room = arguments
    n = len(copied[1])
    results = []
    for verbs in VERBS:
        into = np.full(room, 7, np.uint8)
        status = np.full(n, 9, np.uint8)
        message = None
        try:
            verbs.copy_pieces(*copied, into, status)
        except ValueError as error:
            message = str(error)
        results.append((message, into.tobytes(), status.tobytes()))
    assert all(result == results[0] for result in results)


@alike
@given(
    pieces=st.lists(
        st.tuples(st.integers(-1, 40), st.integers(-1, 12), st.integers(-5, 2**31 - 1)), max_size=6
    ),
    n_rows=st.integers(0, 50),
)
@example(pieces=[(0, 3, 1), (3, 0, 2), (3, 1, 3), (2**63 - 1, 2, 1)], n_rows=4)
@example(pieces=[(0, 2**63 - 1, 1)], n_rows=4)
def test_numbers_are_the_same_in_c_and_in_python(pieces, n_rows):
    columns = np.array(pieces, np.int64).reshape(-1, 3).T.copy()
    results = []
    for verbs in VERBS:
        arrays = [np.full(n_rows, 9, np.int32), np.full(n_rows, 9, np.int32), np.ones(n_rows, np.bool_)]
        message = None
        try:
            verbs.number_pieces(*columns, *arrays)
        except ValueError as error:
            message = str(error)
        results.append((message, [array.tolist() for array in arrays]))
    assert all(result == results[0] for result in results)


@each
def test_piece_is_copied_to_its_place(verbs):
    values = np.arange(1200, dtype="<i4")
    file = encode("tokens.npy", values)
    memory = np.frombuffer(b"..." + file, np.uint8)
    into = np.full((2, 4), -1, "<i4")
    status = np.full(1, 9, np.uint8)
    head = rows_head("tokens.npy", values.dtype)
    columns = [int64(number) for number in (3, len(file), 1200, 1100, 3, 5)]
    verbs.copy_pieces(memory, *columns, head, 4, into, status)
    assert status.tolist() == [RIGHT]
    assert into.tolist() == [[-1, -1, -1, -1], [-1, 1100, 1101, 1102]]


@each
@pytest.mark.parametrize(
    "other",
    [
        np.arange(12, dtype="<u4"),
        np.arange(12, dtype=">i4"),
        np.arange(6, dtype="<i8"),
        np.arange(12, dtype="<i4").reshape(12, 1),
        np.arange(11, dtype="<i4"),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_document_with_another_header_is_not_copied(verbs, other):
    file = encode("tokens.npy", other)
    into = np.full(12, -1, "<i4")
    status = np.full(1, 9, np.uint8)
    head = rows_head("tokens.npy", np.dtype("<i4"))
    columns = [int64(number) for number in (0, len(file), 12, 0, 12, 0)]
    verbs.copy_pieces(np.frombuffer(file, np.uint8), *columns, head, 4, into, status)
    assert status.tolist() == [WRONG]
    assert (into == -1).all()


@each
def test_pieces_are_numbered_from_their_first_row(verbs):
    arrays = [np.zeros((2, 4), np.int32), np.zeros((2, 4), np.int32), np.zeros((2, 4), np.bool_)]
    verbs.number_pieces(int64(0, 3, 5), int64(3, 0, 2), int64(1, 2, 7), *arrays)
    assert [array.tolist() for array in arrays] == [
        [[0, 1, 2, 0], [0, 0, 1, 0]],
        [[1, 1, 1, 0], [0, 7, 7, 0]],
        [[False, True, True, False], [False, False, True, False]],
    ]


@each
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"begin": int64(1)}, "piece 0: document of 12 bytes from byte 1 of 12"),
        ({"nbytes": int64(-1)}, "piece 0: document of -1 bytes from byte 0 of 12"),
        ({"first": int64(2)}, "piece 0: 2 rows from row 2 of 3"),
        ({"length": int64(-1)}, "piece 0: -1 rows from row 0 of 3"),
        ({"at": int64(1)}, "piece 0: 2 rows to row 1 of 2"),
        ({"rows": int64(3, 3)}, "rows: 16 bytes, not 8"),
        ({"row_nbytes": 0}, "a head of 0 bytes, and rows of 0"),
        ({"head": (b"", b"", -1)}, "a head of -1 bytes, and rows of 4"),
    ],
)
def test_impossible_pieces_are_refused(verbs, change, message):
    into = np.full(2, -1, "<i4")
    arguments = {
        "memory": bytes(12),
        "begin": int64(0),
        "nbytes": int64(12),
        "rows": int64(3),
        "first": int64(0),
        "length": int64(2),
        "at": int64(0),
        "head": (b"", b"", 0),
        "row_nbytes": 4,
        "into": into,
        "status": np.full(1, 9, np.uint8),
    }
    arguments |= change
    with pytest.raises(ValueError, match=message):
        verbs.copy_pieces(*arguments.values())
    assert (into == -1).all()


@each
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": int64()}, "length: 0 bytes, not 8"),
        ({"segment_ids": np.zeros(3, np.int32)}, "segment_ids: 12 bytes, not 16"),
        ({"loss_mask": np.zeros(5, np.bool_)}, "loss_mask: 5 bytes, not 4"),
        ({"at": int64(3)}, "piece 0: 2 rows to row 3 of 4"),
    ],
)
def test_impossible_numbers_are_refused(verbs, change, message):
    arguments = {
        "at": int64(0),
        "length": int64(2),
        "segment": int64(1),
        "position_ids": np.zeros(4, np.int32),
        "segment_ids": np.zeros(4, np.int32),
        "loss_mask": np.zeros(4, np.bool_),
    }
    arguments |= change
    with pytest.raises(ValueError, match=message):
        verbs.number_pieces(*arguments.values())
