"""Field names, the registry, and what the writer may be handed."""

import mmap
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import InvalidField
from loader.modalities import check_field, decoder_extensions, encode, find_decoder
from loader.modalities.fields import without_row_blocks
from tests.refusals import refusal
from tests.servers.processes import python

WORDS = st.text("abcXYZ019_-", min_size=1, max_size=8)
FEW = settings(max_examples=100, deadline=None, derandomize=True)


@FEW
@given(st.lists(WORDS, min_size=1, max_size=5))
def test_words_joined_by_dots_are_names(words):
    check_field(".".join(words))


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        ".jpg",
        "jpg.",
        "a..b",
        "a/b",
        "a b",
        "a\n",
        "é.jpg",
        "jpg\x00",
        "٣",
        "x" * 81,
        3,
        None,
        b"jpg",
    ],
)
def test_what_is_not_a_name_is_refused(name):
    given = 81 if name == "x" * 81 else name
    with refusal(InvalidField, what="field name", given=given):
        check_field(name)


@pytest.mark.parametrize("name", ["pkl", "a.pickle", "model.pth", "x.PT", "m.joblib", "a.pyd", "a.dill"])
def test_pickles_are_refused_everywhere(name):
    for refuses in (check_field, find_decoder, lambda n: encode(n, b"")):
        with refusal(InvalidField, what="field", given=name):
            refuses(name)


def test_name_of_80_bytes_is_the_longest():
    check_field("x" * 80)


def test_every_known_extension_loads_and_pickles():
    for word in decoder_extensions():
        decoder = find_decoder(f"some.field.{word.upper()}")
        assert pickle.loads(pickle.dumps(decoder)) == decoder  # noqa: S301


def test_unknown_last_word_gives_the_bytes():
    assert find_decoder("jpg.packets")(memoryview(b"abc"), None) == b"abc"
    assert find_decoder("noword")(b"", None) == b""


def test_bytes_like_values_pass_without_a_copy(tmp_path):
    array = bytearray(b"abcd")
    assert encode("jpg", array) is array
    data = b"xyz"
    assert encode("cls", data) is data
    flat = encode("x.bin", memoryview(np.arange(6, dtype=np.int32).reshape(2, 3)))
    assert len(flat) == 24
    assert bytes(flat) == np.arange(6, dtype=np.int32).tobytes()
    assert bytes(encode("x.bin", memoryview(b"abcdef")[::2])) == b"ace"
    path = tmp_path / "mapped"
    path.write_bytes(b"mapped")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert encode("jpg", mapped) is mapped


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("jpg", np.zeros((2, 2, 3), np.uint8), "numpy.ndarray"),
        ("jpg", "path.jpg", "builtins.str"),
        ("a.bin", None, "NoneType"),
        ("cls", True, "builtins.bool"),
        ("cls", 1.0, "builtins.float"),
        ("cls", "3", "builtins.str"),
        ("cls", 2**63, "int64"),
        ("txt", 3, "builtins.int"),
        ("txt", "\ud800", "UTF-8"),
        ("json", {"a": float("nan")}, "JSON"),
        ("json", {"a": {1, 2}}, "set"),
        ("json", "\ud800", "surrogates"),
        ("jsonl", {"a": 1}, "list"),
        ("npy", [1, 2], "builtins.list"),
        ("npy", np.array([None]), "Python objects"),
        ("npy", np.ma.masked_array([1, 2], [0, 1]), "MaskedArray"),
        ("npy", np.zeros(1, [("é" * 3, "i4"), ("\u4e00", "i4")]), "does not fit"),
    ],
)
def test_other_values_are_refused_by_name(field, value, says):
    with pytest.raises(InvalidField, match=says) as caught:
        encode(field, value)
    assert repr(field) in str(caught.value)


def test_row_blocks_are_of_arrays_only():
    fields = ("a.npy", "a.npy.rows", "b.npy.rows", "table", "table.rows")
    assert without_row_blocks(fields) == ("a.npy", "b.npy.rows", "table", "table.rows")


def test_cycle_is_not_json():
    cycle: list[object] = []
    cycle.append(cycle)
    with refusal(InvalidField, what="json", given="builtins.list", accepted="JSON"):
        encode("json", cycle)


def test_importing_the_registry_imports_no_decoder():
    code = (
        "import sys, loader.modalities;"
        "print([m for m in ('av', 'PIL', 'simplejpeg', 'torch') if m in sys.modules])"
    )
    done = python("-c", code, check=True)
    assert done.stdout.strip() == "[]"
