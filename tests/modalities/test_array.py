"""npy: numpy's own format both ways, without pickles."""

import contextlib
import io
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from loader.errors import DecodeFailed, InvalidField
from loader.modalities import encode, find_decoder
from loader.modalities.array import FLAT
from tests.refusals import refusal

DTYPES = (
    hnp.integer_dtypes(endianness="?")
    | hnp.unsigned_integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?")
    | hnp.complex_number_dtypes()
    | hnp.boolean_dtypes()
    | hnp.byte_string_dtypes(min_len=1)
    | hnp.unicode_string_dtypes(min_len=1)
)
ARRAYS = DTYPES.flatmap(
    lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)
decode = find_decoder("latent.npy")


def array_bytes(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(ARRAYS, st.booleans())
def test_arrays_come_back(array, fortran):
    data = encode("npy", np.asfortranarray(array) if fortran and array.ndim else array)
    back = decode(data, None)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert data == array_bytes(np.ascontiguousarray(array).reshape(array.shape))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ARRAYS)
def test_what_numpy_saves_is_read_as_numpy_reads_it(array):
    data = array_bytes(np.asfortranarray(array) if array.ndim else array)
    back, theirs = decode(data, None), np.load(io.BytesIO(data))
    assert back.dtype == theirs.dtype
    assert back.shape == theirs.shape
    assert back.tobytes() == theirs.tobytes()


def test_array_owns_its_memory():
    data = bytearray(encode("npy", np.arange(12.0).reshape(3, 4)))
    back = decode(data, None)
    data[-8:] = b"\0" * 8
    back[0, 0] = 5
    assert back.flags.owndata
    assert back.flags.c_contiguous
    assert back[2, 3] == 11


def test_numpy_scalar_has_rank_0():
    assert decode(encode("npy", np.float32(2.5)), None).shape == ()


def test_format_2_is_read():
    array = np.zeros(3, [("x" * 40 + str(i), "<f4") for i in range(40)])
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=(2, 0))
    assert decode(file.getvalue(), None).dtype == array.dtype


def test_format_3_is_read():
    array = np.zeros(3, [("é一", "<f4")])
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=(3, 0))
    assert decode(file.getvalue(), None).dtype == array.dtype


GOOD = array_bytes(np.arange(20, dtype=np.int16).reshape(4, 5))
EMPTY = (
    array_bytes(np.zeros((0,), "S1"))
    .replace(b"|S1", b"|V0")
    .replace(b"(0,), }             ", b"(1000000000000,), } ")
)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (array_bytes(np.array([{"a": 1}]), allow_pickle=True), "pickled"),
        (pickle.dumps([1]), "npy"),
        (GOOD[:-1], "39"),
        (GOOD + b"\0", "41"),
        (b"", "npy"),
        (GOOD[:9], "npy"),
        (GOOD.replace(b"(4, 5)", b"(4, -5)"), "npy"),
        (GOOD.replace(b"(4, 5), ", b"(2**9,),"), "npy"),
        (GOOD.replace(b"<i2", b"|O8"), "pickled"),
        (GOOD.replace(b"(4, 5), ", b"{}     ,"), "shape"),
        (GOOD.replace(b"False", b"2    "), "fortran"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f", "header"),
        (GOOD[:10] + b"[" * (len(GOOD) - 10), "npy"),
        (GOOD[:6] + b"\x09" + GOOD[7:], "npy"),
        (EMPTY, "1000000000000 values without a byte"),
    ],
)
def test_bad_files_are_refused(data, says):
    with pytest.raises(DecodeFailed, match=says):
        decode(data, None)


def test_flipped_and_cut_bytes_decode_or_are_refused():
    rng = np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(GOOD)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            data[place] = rng.integers(256)
        cut = bytes(data[: rng.integers(1, len(data) + 1)])
        with contextlib.suppress(DecodeFailed):
            decode(cut, None)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, [("a", ml_dtypes.bfloat16)]])
def test_dtype_that_the_file_would_forget_is_refused(dtype):
    with pytest.raises(InvalidField, match=r"view\(np.uint16\)"):
        encode("npy", np.zeros(3, dtype))


@given(hnp.arrays(st.sampled_from([f"<{word}" for word in FLAT]), st.integers(0, 9)))
def test_flat_values_are_the_bytes_as_they_lie(array):
    word = array.dtype.str[1:]
    found = find_decoder(f"tokens.{word}")(array.tobytes(), None)
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable


def test_part_of_a_flat_value_is_refused():
    with refusal(DecodeFailed, what="u4", given=7):
        find_decoder("tokens.u4")(bytes(7), None)
