"""S3 through a server that misbehaves on command: what is tried again, what is believed, what is reported."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import obstore
import pytest

from loader.errors import (
    AlreadyExists,
    Changed,
    Forbidden,
    InvalidStore,
    ObjectNotFound,
    StoreError,
    Throttled,
    Transient,
)
from loader.storage import ByteRange, open_store
from tests.refusals import refusal

DATA = bytes(range(256)) * 40
AGAIN = [503, 429, 500, 502, 504, "drop", "reset", "stall", "short"]


@pytest.mark.parametrize("fault", AGAIN)
def test_read_is_tried_again(faulty, faulty_options, protocol, fault):
    store = open_store(
        f"{protocol}://bucket", {**faulty_options, "timeout_s": 0.5 if fault == "stall" else 20}
    )
    faulty.origin.hold("k", DATA)
    faulty.faults.extend([fault] * (1 if fault == "stall" else 3))
    assert store.get_range("k", 10, 1000).data == DATA[10:1010]
    assert len(faulty.requests) == (2 if fault == "stall" else 4), "no client retries beside ours"


@pytest.mark.parametrize("fault", [503, "drop", "reset"])
def test_every_other_verb_is_tried_again(faulty, faulty_store, fault):
    faulty.faults.extend([fault] * 2)
    faulty_store.put("k", DATA)
    faulty.faults.extend([fault] * 2)
    assert faulty_store.get("k").data == DATA
    faulty.faults.extend([503] * 2)
    assert faulty_store.head("k").nbytes == len(DATA)
    faulty.faults.extend([fault] * 2)
    assert [
        blob.data for blob in faulty_store.get_ranges("k", [ByteRange(0, 9), ByteRange(900, 9)], max_gap=0)
    ] == [
        DATA[:9],
        DATA[900:909],
    ]


@pytest.mark.parametrize(
    ("fault", "leaf"), [(503, Throttled), (429, Throttled), (500, Transient), ("drop", Transient)]
)
def test_budget_ends(faulty, fault, leaf):
    options = {"key": "k", "secret": "ssss", "endpoint": faulty.endpoint, "retry_deadline_s": 0}
    store = open_store("s3://bucket", options)
    faulty.faults.append(fault)
    with pytest.raises(leaf, match="gave up after 1 tries") as caught:
        store.get("k")
    assert isinstance(caught.value, ConnectionError)
    assert "s3://bucket/k" in str(caught.value)
    store.close()


@pytest.mark.parametrize(
    ("fault", "leaf"), [(403, Forbidden), (401, Forbidden), (400, StoreError), (501, StoreError)]
)
def test_refusal_is_not_tried_again(faulty, faulty_store, protocol, fault, leaf):
    """S3 is asked once more, with the signature in a header: some policies refuse it in the address."""
    asked = 2 if protocol == "s3" else 1
    faulty.faults.extend([fault] * asked)
    with pytest.raises(leaf):
        faulty_store.get("k")
    assert len(faulty.requests) == asked


def test_server_that_is_not_there_is_transient():
    options = {"key": "k", "secret": "ssss", "endpoint": "http://127.0.0.1:1", "retry_deadline_s": 0}
    with pytest.raises(Transient):
        open_store("s3://bucket", options).get("k")


@pytest.mark.parametrize("fault", ["commit-drop", "drop", 503, 500, 409, 412])
def test_create_is_decided_by_what_is_stored(faulty, faulty_store, fault):
    faulty.faults.append(fault)
    faulty_store.put_if_absent("log/1", b"ours")
    assert faulty.origin.held() == {"log/1": b"ours"}


@pytest.mark.parametrize("theirs", [{}, {"log/1": b"theirs"}])
def test_create_whose_answer_never_comes(faulty, faulty_options, protocol, theirs):
    store = open_store(f"{protocol}://bucket", {**faulty_options, "timeout_s": 0.5})
    for key, data in theirs.items():
        faulty.origin.hold(key, data)
    faulty.faults.append("commit-stall")
    with pytest.raises(AlreadyExists) if theirs else nullcontext():
        store.put_if_absent("log/1", b"ours")
    assert faulty.origin.held() == (theirs or {"log/1": b"ours"})
    assert len(faulty.requests) == 2, "the create, and the read that decides"


@pytest.mark.parametrize("fault", ["commit-drop", "drop", 503, 409])
def test_create_stays_ambiguous_for_several_tries(faulty, faulty_store, fault):
    faulty.faults.extend([fault, 503, fault, "drop", fault, "reset"])  # the read that decides fails as well
    faulty_store.put_if_absent("log/1", b"ours")
    assert faulty.origin.held() == {"log/1": b"ours"}


@pytest.mark.parametrize("fault", [None, "drop", 503, 409, "commit-drop"])
def test_create_never_replaces_another(faulty, faulty_store, fault):
    faulty.origin.hold("log/1", b"theirs")
    if fault is not None:
        faulty.faults.append(fault)
    with refusal(AlreadyExists, what="key", where=f"{faulty_store.url}/log/1", given="another object"):
        faulty_store.put_if_absent("log/1", b"ours")
    assert faulty.origin.held() == {"log/1": b"theirs"}


def test_create_without_the_right_is_forbidden(faulty, faulty_store):
    faulty.faults.append(403)
    with pytest.raises(Forbidden):
        faulty_store.put_if_absent("log/1", b"ours")
    assert faulty.origin.held() == {}
    assert len(faulty.requests) == 2, "the create, and the read that decides"


def test_flipped_byte_is_delivered(faulty, faulty_store):
    """No client can see it: only the checksum in our index does."""
    faulty.origin.hold("k", DATA)
    faulty.faults.append("flip")
    blob = faulty_store.get_range("k", 0, 100)
    assert blob.data != DATA[:100]
    assert blob.data[1:] == DATA[1:100]


def test_another_etag_is_changed(faulty, faulty_store):
    faulty.origin.hold("k", DATA)
    pinned = faulty_store.get_range("k", 0, 1).etag
    faulty.faults.append("etag")
    with pytest.raises(Changed):
        faulty_store.get_range("k", 0, 1, pinned)
    faulty.faults.append("etag")
    with pytest.raises(Changed):  # unpinned, and yet one answer does not mix two objects
        faulty_store.get_ranges("k", [ByteRange(0, 1), ByteRange(500, 1)], max_gap=0)


def test_large_object_replaced_while_it_is_read_is_read_again(faulty, faulty_store):
    faulty.origin.hold("k", bytes(17 * 2**20))
    faulty.faults.extend(["etag"])
    assert faulty_store.get("k").data == faulty.origin.held()["k"]


@pytest.mark.parametrize("page_keys", [3, 1_000])
def test_listing_goes_on_behind_a_broken_page(faulty, faulty_store, monkeypatch, page_keys):
    monkeypatch.setattr("loader.storage.cloud.listing.PAGE_KEYS", page_keys)
    keys = [f"log/{number:03d}" for number in range(10)]
    for key in keys:
        faulty.origin.hold(key, b"x")
    faulty.origin.page_keys = 3
    clean = [info.key for info in faulty_store.list("log/")]
    assert clean == keys
    asked = len(faulty.requests)
    for broken in range(asked):
        faulty.faults.extend([503 if number == broken else "ok" for number in range(asked)])
        assert [info.key for info in faulty_store.list("log/", start_after="log/002")] == keys[3:]
        faulty.faults.clear()


@pytest.mark.parametrize("protocol", ["s3", "az"])
def test_listing_ends_where_a_page_always_fails(faulty, faulty_options, protocol, monkeypatch):
    monkeypatch.setattr("loader.storage.cloud.listing.PAGE_KEYS", 3)  # of the server's small pages
    for number in range(10):
        faulty.origin.hold(f"log/{number:03d}", b"x")

    def behind_the_first(request) -> int | None:
        further = {"continuation-token", "marker"} & set(request.query)
        return 503 if further and len(faulty.requests) < 5_000 else None  # else this might never end

    faulty.fault_of = behind_the_first
    store = open_store(f"{protocol}://bucket", {**faulty_options, "retry_deadline_s": 0.2})
    listed = store.list("log/")
    assert [next(listed).key for _ in range(3)] == ["log/000", "log/001", "log/002"]
    with pytest.raises(Throttled, match="gave up after"):
        next(listed)
    store.close()


@pytest.mark.parametrize("protocol", ["s3"])
def test_listing_out_of_order_is_refused(faulty, faulty_store, monkeypatch):
    faulty.origin.objects.update({"a": b"x", "b": b"x", "c": b"x", "d": b"x"})
    ordered = faulty.origin.list
    monkeypatch.setattr(faulty.origin, "list", lambda query: _reversed(ordered, query))
    with refusal(StoreError, what="key order", where="", given="b", accepted="a key after 'z'"):
        list(faulty_store.list())


def _reversed(ordered, query):
    status, xml, headers = ordered(query)
    return status, xml.replace(b"<Key>a<", b"<Key>z<"), headers


def test_file_goes_up_in_parts(s3_options, monkeypatch, tmp_path):
    monkeypatch.setattr("loader.storage.cloud.store.SINGLE_PUT_BYTES", 2**20)
    data = bytes(range(256)) * 2**16 + b"and a second part"
    (tmp_path / "file").write_bytes(data)
    store = open_store("s3://bucket/parts", s3_options)
    store.put_file("k", str(tmp_path / "file"))
    assert store.get("k").data == data
    assert store.head("k").etag.endswith('-2"'), "two parts"


@pytest.mark.parametrize("fault", [503, "drop", "commit-drop"])
@pytest.mark.parametrize("place", range(4))
def test_upload_in_parts_survives_a_fault_anywhere(faulty, faulty_store, monkeypatch, tmp_path, fault, place):
    """place: begin, the two parts, complete (whose lost answer some servers then deny: NoSuchUpload)."""
    monkeypatch.setattr("loader.storage.cloud.store.SINGLE_PUT_BYTES", 2**10)
    monkeypatch.setattr("loader.storage.cloud.store.BOUNDED_BYTES", 5 * 2**20)
    data = bytes(6 * 2**20)
    (tmp_path / "file").write_bytes(data)
    faulty.faults.extend(["ok"] * place + [fault])
    faulty_store.put_file("k", str(tmp_path / "file"))
    assert faulty.origin.held() == {"k": data}


@pytest.mark.parametrize(
    ("protocol", "status", "code"), [("s3", 403, "InvalidObjectState"), ("az", 409, "BlobArchived")]
)
def test_archived_object_says_so(faulty, faulty_store, monkeypatch, status: int, code: str):
    answer = (status, f"<Error><Code>{code}</Code></Error>".encode(), {})
    monkeypatch.setattr(faulty, "origin", lambda _: answer)
    with refusal(StoreError, what="read", given=code):
        faulty_store.get("k")


def test_bucket_that_is_not_there(nowhere, tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    for verb in (
        lambda: nowhere.get("k"),
        lambda: nowhere.get_range("k", 0, 1),
        lambda: nowhere.put("k", b"x"),
        lambda: nowhere.put_if_absent("k", b"x"),
        lambda: nowhere.put_file("k", str(tmp_path / "file")),
        lambda: nowhere.copy("k", "l"),
        lambda: list(nowhere.list()),
        lambda: list(nowhere.list("log/")),
    ):
        with pytest.raises(InvalidStore, match="create the bucket"):
            verb()


MALFORMED = (
    b"<Error><Code>%s</Code><Message>The authorization header is malformed; the region &apos;us-east-1&apos; is wrong; "
    b"expecting &apos;eu-west-1&apos;</Message><Region>eu-west-1</Region></Error>"
)
MOVED = b"<Error><Code>PermanentRedirect</Code><Message>use the specified endpoint</Message></Error>"
READS = {
    "get": lambda store: store.get("k"),
    "put": lambda store: store.put("k", b""),
    "list": lambda store: list(store.list()),
}


@pytest.mark.parametrize("protocol", ["s3"])
@pytest.mark.parametrize("verb", READS)
@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (
            400,
            MALFORMED % b"AuthorizationHeaderMalformed",
            "lies in eu-west-1: give the option region=eu-west-1",
        ),
        (400, MALFORMED % b"AuthorizationQueryParametersError", "give the option region=eu-west-1"),
        (301, MOVED, "lies in another region: give the option region"),
        (307, MOVED.replace(b"Permanent", b"Temporary"), "lies in another region: give the option region"),
    ],
    ids=["header", "query", "moved", "moved for now"],
)
def test_another_region_is_named(faulty, faulty_store, verb: str, status: int, body: bytes, told: str):
    faulty.origin = lambda _: (status, body, {})
    with pytest.raises(InvalidStore, match=told) as caught:
        READS[verb](faulty_store)
    assert "credentials" not in str(caught.value)


@pytest.mark.parametrize("protocol", ["s3"])
@pytest.mark.parametrize(
    ("status", "leaf", "told"),
    [
        (400, StoreError, "check the region and the credentials"),
        (301, InvalidStore, "lies in another region: give the option region"),
    ],
)
def test_look_up_whose_answer_gives_no_reason(faulty, faulty_store, status: int, leaf, told: str):
    """The answer to a HEAD has no body."""
    faulty.origin = lambda _: (status, b"", {})
    with pytest.raises(leaf, match=told):
        faulty_store.head("k")


@pytest.mark.parametrize("protocol", ["s3"])
def test_malformed_header_of_another_kind_is_a_matter_of_credentials(faulty, faulty_store):
    body = b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>no such key</Message></Error>"
    faulty.origin = lambda _: (400, body, {})
    with refusal(Forbidden, what="write", where="s3://bucket/k", given="AuthorizationHeaderMalformed"):
        faulty_store.put("k", b"")


def test_missing_is_missing_at_once(faulty, faulty_store):
    with pytest.raises(ObjectNotFound):
        faulty_store.get("k")
    assert len(faulty.requests) == 1


def test_storm_of_refusals_ends(faulty, faulty_store):
    """64 requests are refused whichever they are; 16 threads get through, and no client retries beside ours."""
    faulty.origin.hold("k", DATA)
    refused = iter([503] * 64)
    faulty.fault_of = lambda _: next(refused, None)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: faulty_store.get_range("k", i * 10, 10).data, range(200)))
    assert found == [DATA[i * 10 : i * 10 + 10] for i in range(200)]
    assert len(faulty.requests) == 264


@pytest.mark.parametrize("protocol", ["s3"])
@pytest.mark.parametrize("code", ["SlowDown", "ServiceUnavailable", "InternalError"])
def test_one_key_of_many_that_stays_is_deleted_again(faulty, faulty_store, code):
    for key in "abc":
        faulty.origin.hold(key, b"x")
    faulty.origin.kept = ["", code]
    faulty_store.delete_many("abc")
    assert faulty.origin.held() == {}
    assert len(faulty.requests) == 2


@pytest.mark.parametrize("protocol", ["s3"])
def test_one_key_of_many_that_may_not_be_deleted(faulty, faulty_options):
    store = open_store("s3://bucket/deep", faulty_options)
    for key in "abc":
        faulty.origin.hold(f"deep/{key}", b"x")
    faulty.origin.kept = ["", "AccessDenied"]
    told = r"^cannot delete s3://bucket/deep/\(3 keys\): the store answered AccessDenied m for deep/b; check"
    with pytest.raises(Forbidden, match=told):
        store.delete_many("abc")
    faulty.origin.kept = ["AccessDenied"]
    with refusal(Forbidden, what="delete", where="s3://bucket/deep/b", given="AccessDenied"):
        store.delete_many(["b"])
    store.close()


@pytest.mark.parametrize("protocol", ["gs", "az"])
def test_delete_that_fails_leaves_nothing_under_way(faulty, faulty_options, protocol):
    """A delete that arrived later would take what was written meanwhile: whatever was begun has ended."""
    store = open_store(f"{protocol}://bucket", {**faulty_options, "retry_deadline_s": 0})
    keys = [f"k{number:03d}" for number in range(300)]
    for key in keys:
        faulty.origin.hold(key, b"x")
    answered: list[str] = []
    origin = faulty.origin

    def slow(request):
        answer = origin(request)
        answered.append(request.method)
        return answer

    faulty.origin = slow
    faulty.faults.append(403)
    with pytest.raises(Forbidden):
        store.delete_many(keys)
    asked = len(faulty.requests)
    assert len(answered) == asked - 1, "all but the one that was refused are through"
    store.put(keys[0], b"new")
    assert store.get(keys[0]).data == b"new"
    assert len(faulty.requests) == asked + 2


@pytest.mark.parametrize(("protocol", "requests"), [("gs", 300), ("az", 2)])
def test_no_call_of_the_client_deletes_in_several_requests(faulty, faulty_store, monkeypatch, requests: int):
    """It returns at the first that fails, while others are on their way."""
    calls: list[int] = []
    delete = obstore.delete

    def counted(client, paths):
        calls.append(len(paths))
        return delete(client, paths)

    monkeypatch.setattr(obstore, "delete", counted)
    keys = [f"k{number:03d}" for number in range(300)]
    for key in keys:
        faulty.origin.hold(key, b"x")
    faulty_store.delete_many(keys)
    assert faulty.origin.held() == {}
    assert len(calls) == len(faulty.requests) == requests


@pytest.mark.parametrize("protocol", ["gs", "az"])  # S3 does not complain
def test_missing_keys_among_many_are_deleted_under_faults(faulty, faulty_store):
    faulty.origin.hold("a", b"x")
    faulty.origin.hold("c", b"x")
    faulty.faults.extend([503, None, 503])
    faulty_store.delete_many(["a", "b", "c"])
    assert faulty.origin.held() == {}


@pytest.mark.parametrize(
    ("protocol", "code"),
    [("s3", "RequestTimeTooSkewed"), ("az", "AuthenticationFailed"), ("gs", "AccessDenied")],
)
def test_refusal_names_the_stores_own_reason(faulty, faulty_store, code: str):
    faulty.origin = lambda _: (403, f"<Error><Code>{code}</Code><Message>why</Message></Error>".encode(), {})
    with refusal(Forbidden, what="read", where=f"{faulty_store.url}/k", given=code):
        faulty_store.get("k")
    if code == "RequestTimeTooSkewed":
        with refusal(Forbidden, what="write", where="s3://bucket/k", given="RequestTimeTooSkewed"):
            faulty_store.put("k", b"x")
