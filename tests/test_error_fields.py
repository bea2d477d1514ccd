"""Errors hold plain fields, also after pickling; `refusal` compares them."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from loader import errors
from loader.errors import (
    MAX_CHARS,
    MAX_ENTRIES,
    Conflict,
    Corrupt,
    Forbidden,
    InvalidPlan,
    PenstockError,
    VersionNotFound,
    plain_value,
)
from loader.keywords import check_whole_number, whole_number
from loader.order.random.plan_hash import int_in_range
from loader.run.workers.batch_message import PickledError
from tests.refusals import refusal

TYPES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PenstockError)]
FIELDS = {"what": "batch", "where": "plan.json, line 3", "given": -1, "accepted": [1, 2]}


@pytest.mark.parametrize("kind", TYPES)
def test_error_keeps_fields_when_a_worker_sends_it(kind):
    error = PickledError.of(kind("batch = -1", **FIELDS)).restored()
    assert type(error) is kind
    assert str(error) == "batch = -1"
    assert {name: getattr(error, name) for name in FIELDS} == FIELDS


def test_error_without_fields_states_none():
    error = VersionNotFound("no such version", dataset="photos")
    assert vars(error) == {"dataset": "photos"}
    assert (error.what, error.where, error.given, error.accepted) == (None, None, None, None)


def test_field_holds_no_secret():
    url = "s3://user:secret-word@host/bucket"
    signed = "https://host/x?X-Amz-Signature=secret-word&a=1"
    error = Forbidden("denied", what=url, where=Path(signed), given=[url, (signed, {"url": url})])
    assert "secret-word" not in repr(vars(error))
    assert error.what == "s3://***@host/bucket"


def test_field_holds_no_object_of_the_caller():
    error = InvalidPlan("refused", given=lambda: 0, accepted={"a": print})
    assert "<lambda>" in error.given
    assert error.accepted == "{'a': <built-in function print>}"
    assert pickle.loads(pickle.dumps(error)).given == error.given  # noqa: S301 - bytes of this test


def test_field_is_short():
    endless: list[object] = []
    endless.append(endless)
    assert len(plain_value("x" * 2 * MAX_CHARS)) == MAX_CHARS
    assert len(plain_value(list(range(1000)))) == MAX_CHARS
    assert plain_value(list(range(MAX_ENTRIES))) == list(range(MAX_ENTRIES))
    assert plain_value(endless) == [[["[[...]]"]]]


def test_error_with_another_message_has_the_same_fields():
    error = VersionNotFound("no such version", dataset="photos", what="photos@9")
    error.add_note("a note")
    other = error.with_message("source 'p': no such version", where="plan.json")
    assert type(other) is VersionNotFound
    assert str(other) == "source 'p': no such version"
    assert vars(other) == {"dataset": "photos", "what": "photos@9", "where": "plan.json"}


def test_refusal_yields_the_error():
    with refusal(InvalidPlan, what="batch", given=[0, float("nan")]) as caught:
        raise InvalidPlan("batch = 0", what="batch", given=[0, float("nan")], accepted="1 or more")
    assert str(caught.value) == "batch = 0"


@pytest.mark.parametrize(
    "error",
    [
        InvalidPlan("batch = 1", what="seed", given=1),
        InvalidPlan("batch = 1", what="batch", given=2),
        InvalidPlan("batch = 1", what="batch", given=True),
        InvalidPlan("batch = 1", what="batch"),
        InvalidPlan("batch = 1"),
    ],
)
def test_refusal_fails_if_a_field_differs(error):
    with pytest.raises(AssertionError, match="batch = 1"), refusal(InvalidPlan, what="batch", given=1):
        raise error


def test_refusal_fails_without_an_error():
    with pytest.raises(pytest.fail.Exception), refusal(InvalidPlan, what="batch"):
        pass


def test_refusal_reraises_an_error_of_another_type():
    with pytest.raises(Corrupt), refusal(Conflict, what="batch"):
        raise Corrupt("damaged", what="batch")


def test_refusal_needs_a_field():
    with pytest.raises(TypeError, match="needs a field"), refusal(InvalidPlan):
        raise InvalidPlan("batch = 1")


@pytest.mark.parametrize("value", [0, 5, True, 1.0, "2", None])
def test_whole_number_that_is_refused_is_stated(value):
    with refusal(InvalidPlan, what="batch", given=value, accepted="a whole number from 1 to 4"):
        int_in_range("batch", value, 1, 4)


def test_whole_number_accepts_a_numpy_integer_that_a_stored_one_is_not():
    assert type(whole_number("batch", np.int64(4), 1)) is int
    with refusal(Conflict, what="batch", accepted="a whole number of at least 1"):
        check_whole_number("batch", np.int64(4), 1, error=Conflict)
