"""What S3 is given without hashing it again is there as whole as everything else, or is put again."""

import hashlib
from contextlib import closing
from dataclasses import replace as replaced

import pytest

from loader.errors import AlreadyExists, Forbidden
from loader.storage import open_store
from loader.storage.cloud.listing import differ
from loader.storage.cloud.s3 import S3PutStore
from tests.refusals import refusal

DATA = bytes(range(256)) * 40
TWIN = f'"{hashlib.md5(DATA, usedforsecurity=False).hexdigest()}"'
UNSIGNED = "UNSIGNED-PAYLOAD"
pytestmark = pytest.mark.parametrize("protocol", ["s3"])


@pytest.fixture
def puts(faulty):
    """puts() -> the hash that each PUT was signed with."""

    def signed():
        told = zip(faulty.requests, faulty.headers, strict=True)
        return [headers["x-amz-content-sha256"] for request, headers in told if request.startswith("PUT")]

    return signed


@pytest.fixture
def passing_on(faulty):
    """passing_on(do) -> each request comes to the store as `do(request)` gives it, or that is the answer."""

    def through(do):
        origin = faulty.origin

        def asked(request):
            found = do(request)
            return found if isinstance(found, tuple) else origin(found)

        faulty.origin = asked

    return through


def is_unsigned(request):
    return request.method == "PUT" and request.headers["x-amz-content-sha256"] == UNSIGNED


SIGNED = hashlib.sha256(DATA).hexdigest()
either = pytest.mark.parametrize("replace", [True, False])


@either
def test_one_put_where_the_store_says_the_same(faulty, faulty_store, puts, replace):
    assert isinstance(faulty_store, S3PutStore)
    faulty_store.put_same("k", DATA, TWIN, replace=replace)
    assert faulty_store.get("k").data == DATA
    assert puts() == [UNSIGNED]
    faulty_store.close()
    faulty_store.put_same("again", memoryview(DATA), TWIN, replace=replace)
    assert faulty_store.get("again").data == DATA


@pytest.mark.parametrize("etag", ["", '"abc"', TWIN.replace('"', ""), f'{TWIN[:-1]}-2"', '"another"'])
def test_what_is_no_md5_vouches_for_nothing(faulty_store, puts, etag):
    faulty_store.put_same("k", DATA, etag, replace=False)
    assert puts() == [SIGNED]


@either
def test_bytes_that_broke_on_the_way_are_put_again(faulty, faulty_store, puts, passing_on, replace):
    passing_on(lambda one: replaced(one, body=b"X" + one.body[1:]) if is_unsigned(one) else one)
    faulty_store.put_same("k", DATA, TWIN, replace=replace)
    assert faulty_store.get("k").data == DATA
    assert puts() == [UNSIGNED, SIGNED]


@either
def test_etags_of_another_kind_are_asked_for_once(faulty, faulty_store, puts, replace):
    """As with KMS: what arrived is read, is right, and stays."""
    faulty.faults.append("etag")
    faulty_store.put_same("k", DATA, TWIN, replace=replace)
    assert faulty_store.get("k").data == DATA
    assert puts() == [UNSIGNED]
    faulty_store.put_same("l", DATA, TWIN, replace=replace)
    assert puts() == [UNSIGNED, SIGNED]


@either
@pytest.mark.parametrize("status", [400, 403, 501])
def test_policy_that_wants_signed_payloads_gets_them(faulty, faulty_store, puts, passing_on, replace, status):
    refusal = status, b"<Error><Code>AccessDenied</Code></Error>", {}
    passing_on(lambda one: refusal if is_unsigned(one) else one)
    for key in ("k", "l"):
        faulty_store.put_same(key, DATA, TWIN, replace=replace)
        assert faulty_store.get(key).data == DATA
    assert puts() == [UNSIGNED, SIGNED, SIGNED]


@either
def test_without_the_right_to_write_it_says_so(faulty, faulty_store, passing_on, replace):
    refusal = 403, b"<Error><Code>AccessDenied</Code></Error>", {}
    passing_on(lambda one: refusal if one.method == "PUT" else one)
    with pytest.raises(Forbidden):
        faulty_store.put_same("k", DATA, TWIN, replace=replace)


@either
def test_expired_credentials_say_nothing_about_unsigned_puts(faulty, faulty_store, puts, passing_on, replace):
    answers = [(403, b"<Error><Code>AccessDenied</Code></Error>", {})]
    passing_on(lambda one: answers[0] if answers and one.method == "PUT" else one)
    with pytest.raises(Forbidden):
        faulty_store.put_same("k", DATA, TWIN, replace=replace)
    answers.clear()
    n_before = len(puts())
    faulty_store.put_same("k", DATA, TWIN, replace=replace)
    assert faulty_store.get("k").data == DATA
    assert puts()[n_before:] == [UNSIGNED]


def test_object_of_somebody_else_stays(faulty, faulty_store):
    faulty.origin.hold("k", b"another")
    with refusal(AlreadyExists, what="key", where="s3://bucket/k", given="another object"):
        faulty_store.put_same("k", DATA, TWIN, replace=False)
    assert faulty.origin.held() == {"k": b"another"}
    faulty_store.put_same("k", DATA, TWIN, replace=True)
    assert faulty.origin.held() == {"k": DATA}


@either
@pytest.mark.parametrize("fault", [503, "drop", "commit-drop", "reset"])
def test_it_is_tried_again(faulty, faulty_store, replace, fault):
    faulty.faults.extend([fault] * 2)
    faulty_store.put_same("k", DATA, TWIN, replace=replace)
    assert faulty.origin.held() == {"k": DATA}


@either
def test_who_may_write_and_not_read_writes_again(faulty, faulty_store, puts, passing_on, replace):
    """As with KMS, whose ETags are not MD5s, and a role that may encrypt and not decrypt."""
    refusal = 403, b"<Error><Code>AccessDenied</Code></Error>", {}
    passing_on(lambda one: refusal if one.method == "GET" else one)
    faulty.faults.append("etag")
    faulty_store.put_same("k", DATA, TWIN, replace=replace)
    assert puts() == [UNSIGNED, SIGNED]


def test_what_went_meanwhile_is_created_as_ever(faulty, faulty_store, puts, passing_on):
    origin = faulty.origin

    def gone_when_it_is_read(one):
        if one.method == "GET":
            origin.objects.clear()
        return one

    passing_on(gone_when_it_is_read)
    faulty.faults.append("etag")
    faulty_store.put_same("k", DATA, TWIN, replace=False)
    assert puts() == [UNSIGNED, SIGNED]
    assert faulty.headers[-1]["if-none-match"] == "*"


@pytest.mark.parametrize(("said", "hashes"), [(False, SIGNED), ("true", UNSIGNED)])
def test_whoever_says_what_is_signed_decides(faulty, faulty_options, puts, said, hashes):
    with closing(open_store("s3://bucket", {**faulty_options, "unsigned_payload": said})) as store:
        store.put_same("k", DATA, TWIN, replace=False)
    assert puts() == [hashes]


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [(TWIN, TWIN, False), (TWIN, f'"{"0" * 32}"', True), (TWIN, '"another"', False), ("", TWIN, False)],
)
def test_only_two_md5s_tell_objects_apart(protocol, one, other, wanted):
    assert differ(one, other) == differ(other, one) == wanted
