"""What a worker says is plain data, and what it knows is a short list: it may have met a file that took it over."""

import math
import os
import pickle
import struct
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.compute.pool import LocalCompute
from penstock.compute.pool.answers import NotAnAnswer, answer_types, decode_answer
from penstock.compute.pool.worker import MAX_BYTES, encode_result

TIMEOUT_S = 600.0
KEYS = st.one_of(st.text(max_size=3), st.integers(), st.booleans(), st.none(), st.binary(max_size=2))
VALUES = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.binary(max_size=5)),
        st.text(st.characters(), max_size=5),
        st.sampled_from([Path("/a b/c"), Path("x"), "\ud800", "", -0.0, math.inf]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3),
        st.frozensets(KEYS, max_size=3),
        st.sets(KEYS, max_size=3),
    ),
    max_leaves=12,
)


@pytest.fixture
def engine():
    opened = LocalCompute(1)
    yield opened
    opened.close()


class Touch:
    """Whoever unpickles this makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mknod, (self.path,)


def typed_value(value):
    """A value with the type of everything in it: True is not 1, and 0.0 not -0.0."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return kind, [(typed_value(key), typed_value(one)) for key, one in value.items()]
    if isinstance(value, set | frozenset):
        return kind, frozenset(map(typed_value, value))
    return kind, [typed_value(one) for one in value] if isinstance(value, list | tuple) else repr(value)


@given(VALUES)
def test_plain_values_come_back_as_they_were(value) -> None:
    assert typed_value(decode_answer(encode_result(value), {})) == typed_value(value)


@pytest.mark.parametrize(
    "value",
    [
        *(
            np.zeros((3, 0), np.float32),
            np.zeros(0),
            np.float32(3),
            np.int64(-1),
            np.array(5),
            np.float64(0.1),
        ),
        *(np.arange(12).reshape(3, 4)[:, ::2], np.array(["ab", ""]), np.array([True]), np.zeros(2, ">f2")),
        np.array(["2020-01-01"], "M8[s]"),
    ],
    ids=repr,
)
def test_numbers_and_arrays_come_back_as_they_were(value) -> None:
    back = decode_answer(encode_result({"a": [value]}), {})["a"][0]
    assert (type(back), back.dtype, back.shape, back.tobytes()) == (
        *(type(value), value.dtype, value.shape, value.tobytes()),
    )


def test_mapping_is_a_dict_and_a_text_of_a_class_of_its_own_a_text() -> None:
    class Version(str):
        __slots__ = ()

    assert decode_answer(encode_result(MappingProxyType({"v": Version("2.6")})), {}) == {"v": "2.6"}


@pytest.mark.parametrize("value", [object(), print, np.array([None]), 1j, {"a": [{1: os}]}], ids=type)
def test_anything_else_is_refused_where_it_is_made(value) -> None:
    with pytest.raises(TypeError, match="cannot be sent back; accepted: None, bool"):
        encode_result(value)


def test_dataclasses_are_those_that_the_annotation_names(engine, units) -> None:
    given = ["named", "unnamed", "inside"]
    named, *others = engine.map(units.answer, given, timeout_s=TIMEOUT_S)
    assert named.value == units.Named((1, (units.Named(),)))
    for other in others:
        assert "compute_units:Unnamed; accepted: plain values" in other.error.summary
        assert "(compute_units:Named)" in other.error.summary


def test_worker_that_was_taken_over_makes_its_parent_run_nothing(engine, units, tmp_path) -> None:
    """Its answer is a pickle that makes a file, as a value, as a failure, and as the head of plain data."""
    pickled = pickle.dumps(Touch(str(tmp_path / "ran")))
    bodies = [pickled, struct.pack(">Q", len(pickled)) + pickled]
    said = [(struct.pack(">cQ", kind, len(body)), body) for body in bodies for kind in (b"v", b"x")]
    for one in said:
        (outcome,) = engine.map(units.speak_as_worker, [one], timeout_s=TIMEOUT_S)
        assert not outcome.ok
        engine._pool.close()
    assert os.listdir(tmp_path) == []


def test_announced_size_takes_no_memory(engine, units, children) -> None:
    """Of more than there is: the unit has failed, not the map."""
    header = struct.pack(">cQ", b"v", 2**62)
    (outcome,) = engine.map(units.speak_as_worker, [(header,)], timeout_s=TIMEOUT_S)
    assert outcome.error.code == "crashed"
    within = struct.pack(">cQ", b"v", MAX_BYTES)
    (outcome,) = engine.map(units.speak_as_worker, [(within,)], timeout_s=2)
    assert outcome.error.code == "timeout"


@pytest.mark.parametrize(
    "head",
    [
        *(b"[]", b"[[],[],{}]", b'[[],[],{"a":1}]', b'[[],[],{"list":[],"dict":{}}]', b"[[1],[],null]"),
        *(b"[[-1],[],null]", b'[[],[],{"bytes":0}]', b'[[],["os:system"],null]', b'[[],[],{"is":[0,[]]}]'),
        *(b'[[],[],{"array":["O",[1],0]}]', b'[[],[],{"array":["<i4",[-1],0]}]', b"[" * 100_000, b"\xff"),
        *(
            b'[[],[],{"set":[[]]}]',
            b"[[],[],1" + b"0" * 5000 + b"]",
            b"[[true],[],null]",
            b'[[],[],{"path":1}]',
        ),
    ],
    ids=lambda head: head[:40],
)
def test_what_is_no_answer_is_refused(head) -> None:
    with pytest.raises(NotAnAnswer):
        decode_answer(struct.pack(">Q", len(head)) + head, {})


def test_function_without_an_annotation_returns_no_dataclass(units) -> None:
    assert answer_types(units.double) == {}
    assert answer_types(units.answer) == {"compute_units:Named": units.Named}


SECRETS = ("AWS_SECRET_ACCESS_KEY", "PARTNER_KEY", "PENSTOCK_ALERTS_URL", "HF_TOKEN", "CUDA_REGISTRY_TOKEN")


def test_worker_gets_a_short_list_of_variables(engine, units, monkeypatch) -> None:
    for name in (*SECRETS, "TZ", "LC_TIME", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SOMETHING"):
        monkeypatch.setenv(name, f"is {name}")
    (outcome,) = engine.map(units.environment, [0], timeout_s=TIMEOUT_S)
    seen, started = outcome.value
    wanted = {"TZ", "LC_TIME", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PATH", "OPENBLAS_NUM_THREADS"}
    assert wanted <= seen.keys()
    assert not {*SECRETS, "SOMETHING"} & {*seen, *started}


def test_map_names_what_its_workers_need_besides(units, monkeypatch, children) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"is {name}")
    engine = LocalCompute(1, variables=["PARTNER_*"])
    before = children()

    def worker_variables(variables):
        (outcome,) = engine.map(units.environment, [0], timeout_s=TIMEOUT_S, variables=variables)
        return {*SECRETS} & {*outcome.value[0], *outcome.value[1]}

    assert worker_variables(["AWS_*"]) == {"AWS_SECRET_ACCESS_KEY", "PARTNER_KEY"}
    assert worker_variables(["HF_TOKEN"]) == {"HF_TOKEN", "PARTNER_KEY"}, "and nothing of the map before"
    assert len(children() - before) == 1, "a worker that knows other things makes room"
    engine.close()
