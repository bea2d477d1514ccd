"""txt, json, jsonl, cls: what is written is what is read, and nothing else is read."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import DecodeFailed
from loader.modalities import encode, find_decoder
from tests.refusals import refusal

FEW = settings(max_examples=150, deadline=None, derandomize=True)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner, max_size=4)
    ),
    max_leaves=12,
)


def read(field, data):
    return find_decoder(field)(data, None)


@FEW
@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_txt_comes_back(text):
    assert read("a.txt", encode("a.txt", text)) == text


@FEW
@given(JSON)
def test_json_comes_back(value):
    assert read("json", encode("json", value)) == value


@FEW
@given(st.lists(JSON, max_size=4))
def test_jsonl_comes_back(values):
    assert read("jsonl", encode("jsonl", values)) == values


@FEW
@given(st.integers(-(2**63), 2**63 - 1))
def test_cls_comes_back(label):
    assert read("cls", encode("cls", label)) == label
    assert encode("cls", np.int64(label)) == encode("cls", label)


def test_json_keeps_the_order_of_keys_and_the_letters():
    assert encode("json", {"b": 1, "a": "é"}) == '{"b": 1, "a": "é"}'.encode()


def test_json_reads_the_nan_that_others_wrote():
    assert np.isnan(read("json", b'{"similarity": NaN}')["similarity"])


def test_cls_ignores_surrounding_blanks():
    assert read("cls", b" 12\n") == 12


@pytest.mark.parametrize(
    ("field", "data", "fault"),
    [
        ("txt", b"\xff", "no UTF-8"),
        ("txt", "é".encode("latin-1"), "no UTF-8"),
        ("json", b"", "JSONDecodeError"),
        ("json", b"{", "JSONDecodeError"),
        ("json", b"\xff\xfe{\x00}\x00", "UnicodeDecodeError"),
        ("json", b"[" * 200_000, "RecursionError"),
        ("json", b"1" * 5000, "ValueError"),
        ("jsonl", b'{"a": 1}\n{"a"', "JSONDecodeError"),
        ("cls", b"", "b''"),
        ("cls", b"1.0", "b'1.0'"),
        ("cls", b"1_000", "b'1_000'"),
        ("cls", "٣".encode(), repr("٣".encode())),
        ("cls", b"9223372036854775808", "b'9223372036854775808'"),
        ("cls", b"9" * 5000, repr(b"9" * 40)),
    ],
)
def test_bad_bytes_are_refused(field, data, fault):
    with refusal(DecodeFailed, what=field, given=fault):
        read(field, data)


def test_jsonl_names_the_line():
    with refusal(DecodeFailed, what="jsonl", where="line 3", given="JSONDecodeError"):
        read("jsonl", b"1\n\n{\n")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.sampled_from(["txt", "json", "jsonl", "cls"]), st.binary(max_size=40))
def test_any_bytes_decode_or_are_refused(field, data):
    with contextlib.suppress(DecodeFailed):
        read(field, data)
