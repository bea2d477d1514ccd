"""Ranges of S3 by requests of our own: what they ask, what they believe, and when obstore is asked instead."""

import hashlib
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from urllib.parse import urlsplit
from weakref import WeakSet

import obstore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import Changed, Corrupt, ObjectNotFound, StoreError, Throttled, Transient
from loader.storage import ByteRange, open_store
from loader.storage.cloud import http_connection as connection
from loader.storage.cloud.http_connection import HEAD_BYTES, PLAIN, SMALL_BYTES, Broken, HttpConnection, Place
from loader.storage.files import download
from loader.storage.requests import Traffic, count_requests
from loader.storage.stream import MANY, PieceReader, RangeSeries, SequentialRead
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until

MIB = 2**20
BODY_BYTES = 16 * MIB
DATA = Random(3).randbytes(300_000)


@pytest.fixture(params=["s3"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ways(faulty) -> list[str]:
    """Of each request for an object: "direct", by an address that is signed, or "header"."""
    return ["direct" if "X-Amz-Signature=" in asked else "header" for asked in faulty.requests]


# what is asked


def test_every_read_of_bytes_is_direct(faulty, faulty_store):
    faulty.origin.hold("a b/ü+%.bin", DATA)
    key, view = "a b/ü+%.bin", memoryview(bytearray(200_000))
    assert faulty_store.get_range(key, 5, 1000).data == DATA[5:1005]
    assert faulty_store.get(key).data == DATA
    faulty_store.fill(key, 7, view)
    assert bytes(view) == DATA[7:200_007]
    spans = [ByteRange(1, 9), ByteRange(250_000, 9)]
    assert [blob.data for blob in faulty_store.get_ranges(key, spans)] == [DATA[1:10], DATA[250_000:250_009]]
    assert ways(faulty) == ["direct"] * 5
    assert {urlsplit(asked.split()[1]).path for asked in faulty.requests} == {
        "/bucket/a%20b/%C3%BC%2B%25.bin"
    }
    faulty_store.head(key)
    assert ways(faulty)[-1] == "header"


def test_who_does_not_want_it_asks_obstore(faulty, faulty_options):
    faulty.origin.hold("k", DATA)
    store = open_store("s3://bucket", {**faulty_options, "direct_reads": False})
    assert store.get("k").data == DATA
    assert store.get_range("k", 1, 2).data == DATA[1:3]
    assert ways(faulty) == ["header"] * 2
    store.close()


@pytest.mark.parametrize("option", ["anon", "sse_customer_key_base64", "s3_express"])
def test_what_an_address_does_not_have(faulty, faulty_options, option):
    given = {n: v for n, v in faulty_options.items() if option != "anon" or n not in ("key", "secret")}
    value = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=" if option.startswith("sse") else True
    bucket = "bucket--use1-az4--x-s3" if option == "s3_express" else "bucket"
    assert open_store(f"s3://{bucket}", {**given, option: value})._direct is None


def test_connections_are_used_again(faulty, faulty_store):
    faulty.origin.hold("k", DATA)
    for offset in range(20):
        assert (
            faulty_store.get_range("k", offset, 100 + offset * 12_000).data
            == DATA[offset:][: 100 + offset * 12_000]
        )
    with pytest.raises(ObjectNotFound):
        faulty_store.get("nope")
    assert faulty_store.get_range("k", 0, 1).data == DATA[:1]
    assert len(faulty._threads) == 2, "the listener, and one connection"


def test_connection_that_was_closed_while_it_was_idle_costs_no_try(faulty, faulty_options):
    store, seen = open_store("s3://bucket", {**faulty_options, "retry_deadline_s": 0}), Traffic()
    faulty.origin.hold("k", DATA)
    with count_requests(seen):
        for _ in range(3):
            assert store.get_range("k", 3, 100).data == DATA[3:103]
            faulty.faults.append("drop")
    assert (seen.requests, seen.retries) == (5, 2)
    faulty.faults.extend(["drop"] * 2)
    with refusal(Transient, what="read", where="s3://bucket/k", given="Broken"):
        store.get_range("k", 3, 100)
    store.close()


def test_idle_connections_are_closed_with_the_store(faulty, faulty_options):
    faulty.origin.hold("k", DATA)
    store = open_store("s3://bucket", faulty_options)
    read = partial(store.get_range, "k", nbytes=1000)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read, range(40)))
        store.close()
        list(threads.map(read, range(40)))
    del store, read
    for thread in faulty._threads[1:]:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


# what is believed


@pytest.mark.parametrize("status", [400, 401, 403, 405, 301, 501])
def test_obstore_decides_what_a_refusal_means(faulty, faulty_store, status):
    """Some policies refuse a signature in the address; what is wrong with credentials, obstore says."""
    faulty.origin.hold("k", DATA)
    seen = Traffic()
    with count_requests(seen):
        faulty.faults.append(status)
        assert faulty_store.get_range("k", 2, 50).data == DATA[2:52]
    assert ways(faulty) == ["direct", "header"]
    assert (seen.requests, seen.retries) == (2, 0)


def test_who_is_always_refused_is_not_asked_for_a_minute(faulty, faulty_store, monkeypatch):
    store = faulty.origin
    store.hold("k", DATA)
    faulty.origin = lambda request: (403, b"", {}) if "X-Amz-Signature" in request.query else store(request)
    for _ in range(6):
        assert faulty_store.get("k").data == DATA
    assert ways(faulty) == ["direct", "header"] * 3 + ["header"] * 3
    faulty.origin = store
    monkeypatch.setattr(
        "loader.storage.cloud.range_requests.time.monotonic",
        lambda after=faulty_store._direct._resumes: after,
    )
    assert faulty_store.get("k").data == DATA
    assert ways(faulty)[-1] == "direct"


def test_refusals_that_are_not_in_a_row_are_by_the_way(faulty, faulty_store):
    faulty.origin.hold("k", DATA)
    for _ in range(4):
        faulty.faults.append(403)
        assert faulty_store.get("k").data == faulty_store.get("k").data == DATA
    assert ways(faulty) == ["direct", "header", "direct"] * 4


def test_credentials_that_were_replaced_sign_anew(faulty, faulty_options):
    store, valid, given = faulty.origin, ["1"], []
    store.hold("k", DATA)
    store.hold("other", DATA)

    def provider():
        given.append(1)
        soon = datetime.now(UTC) - timedelta(seconds=1)
        return {
            "access_key_id": "AKIA",
            "secret_access_key": "PLANTED",
            "token": valid[0],
            "expires_at": soon,
        }

    def origin(request):
        token = request.query.get("X-Amz-Security-Token", request.headers.get("x-amz-security-token"))
        if token == valid[0]:
            return store(request)
        return 400, b"<Error><Code>ExpiredToken</Code></Error>", {}

    faulty.origin = origin
    options = {n: v for n, v in faulty_options.items() if n not in ("key", "secret")}
    opened = open_store("s3://bucket", {**options, "credential_provider": provider})
    assert opened.get("k").data == opened.get("other").data == opened.get("k").data == DATA
    assert len(given) == 2, "an address is signed once"
    valid[0] = "2"
    assert opened.get("k").data == opened.get("other").data == DATA
    assert ways(faulty) == ["direct"] * 3 + ["direct", "header", "direct"], (
        "the other is not refused any more"
    )
    opened.close()


@pytest.mark.parametrize("fault", [503, 429, 500, "drop", "reset", "short", "stall"])
def test_what_breaks_is_not_asked_for_by_the_other_way(faulty, faulty_options, fault):
    faulty.origin.hold("k", DATA)
    timeout_s = 0.3 if fault == "stall" else 20
    store = open_store("s3://bucket", {**faulty_options, "retry_deadline_s": 0, "timeout_s": timeout_s})
    for read in (
        lambda: store.get_range("k", 1, 200_000),
        lambda: store.get_range("k", 1, 1000),
        lambda: store.get("k"),
    ):
        store.close()
        faulty.faults.append(fault)
        with pytest.raises(Throttled if fault in (503, 429) else Transient) as caught:
            read()
        assert "X-Amz" not in str(caught.value)
        assert "127.0.0.1" not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__cause__ is not None
    assert set(ways(faulty)) == {"direct"}
    store.close()


def test_etag_without_quotes_is_the_listings(faulty, faulty_store):
    store = faulty.origin
    store.hold("k", DATA)
    (listed,) = faulty_store.list()

    def bare(request):
        status, body, headers = store(request)
        return status, body, {**headers, "etag": headers["etag"].strip('"')}

    faulty.origin = bare
    assert faulty_store.get_range("k", 0, 9, listed.etag) == (DATA[:9], listed.etag)


def test_bytes_that_are_stored_encoded_come_as_they_are(faulty, faulty_store):
    """S3 repeats what was said of them when they were put."""
    store = faulty.origin
    store.hold("k", DATA)

    def said(request):
        status, body, headers = store(request)
        return status, body, {**headers, "content-encoding": "gzip"}

    faulty.origin = said
    assert faulty_store.get_range("k", 3, 9).data == DATA[3:12]
    assert ways(faulty) == ["direct"]


OTHER = {
    "the whole object": lambda body, headers: (200, DATA, {"etag": headers["etag"]}),
    "no etag": lambda body, headers: (206, body, {"content-range": headers["content-range"]}),
    "no range": lambda body, headers: (206, body, {"etag": headers["etag"]}),
    "no size": lambda body, headers: (206, body, {**headers, "content-range": "bytes 10-109/*"}),
    "another range": lambda body, headers: (
        206,
        body,
        {**headers, "content-range": f"bytes 11-110/{len(DATA)}"},
    ),
    "nothing": lambda body, headers: (204, b"", {}),
}


@pytest.mark.parametrize("other", OTHER)
def test_another_answer_is_not_taken_for_the_range(faulty, faulty_store, other):
    store = faulty.origin
    store.hold("k", DATA)

    def origin(request):
        status, body, headers = store(request)
        return OTHER[other](body, headers) if "X-Amz-Signature" in request.query else (status, body, headers)

    faulty.origin = origin
    assert faulty_store.get_range("k", 10, 100).data == DATA[10:110]
    assert ways(faulty) == ["direct", "header"]


def test_more_than_was_asked_for_is_tried_again(faulty, faulty_store):
    store, left = faulty.origin, [b"more"]
    store.hold("k", DATA)

    def origin(request):
        status, body, headers = store(request)
        return status, body + (left.pop() if left else b""), headers

    faulty.origin = origin
    assert faulty_store.get_range("k", 10, 100).data == DATA[10:110]
    assert ways(faulty) == ["direct", "direct"]


def test_mixed_crowd_under_faults_reads_what_is_there(faulty, faulty_store, monkeypatch):
    monkeypatch.setattr("loader.storage.cloud.range_requests.REFUSALS", 10**9)
    faulty.origin.hold("k", DATA)
    faults = Random(5).choices([None, None, None, 503, "drop", "reset", "short", 403], k=400)
    lock = threading.Lock()

    def fault_of(request):
        with lock:
            fault = faults.pop() if faults else None
        return None if fault == 403 and "X-Amz-Signature" not in request.query else fault

    faulty.fault_of = fault_of

    def work(thread: int) -> None:
        random = Random(thread)
        for _ in range(40):
            offset, nbytes = (
                random.randrange(len(DATA)),
                random.choice([1, 700, 20_000, 131_072, 131_073, 250_000]),
            )
            nbytes = min(nbytes, len(DATA) - offset)
            if random.random() < 0.5:
                assert faulty_store.get_range("k", offset, nbytes).data == DATA[offset : offset + nbytes]
            else:
                view = memoryview(bytearray(nbytes))
                faulty_store.fill("k", offset, view)
                assert bytes(view) == DATA[offset : offset + nbytes]

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(work, range(12)))


@pytest.fixture
def at_once(faulty_store, monkeypatch):
    """at_once(what): a connection that can be asked again is asked by somebody else in the same moment, once."""

    def arm(what) -> None:
        direct = faulty_store._direct
        real = direct._keep

        def keep(kept: HttpConnection) -> None:
            real(kept)
            if direct._keep is keep:
                direct._keep = real
                what()

        direct._keep = keep

    return arm


def test_what_was_read_is_not_what_the_next_one_reads(faulty, faulty_store, at_once):
    faulty.origin.hold("k", DATA)
    faulty.origin.hold("other", DATA[::-1])  # as long: only its ETag tells
    expected = faulty_store.head("k").etag
    at_once(lambda: faulty_store.get("other"))
    assert faulty_store.get("k") == (DATA, expected)
    at_once(lambda: faulty_store.get("other"))
    assert faulty_store.get_range("k", 1, 200_000) == (DATA[1:200_001], expected)
    at_once(lambda: faulty_store.get("other"))
    assert faulty_store.fill("k", 0, memoryview(bytearray(150_000))) == expected
    assert len(faulty._threads) == 3, "the listener, obstore's and ours"


def test_refusal_is_not_what_the_next_one_is_told(faulty, faulty_store, at_once):
    faulty.origin.hold("k", DATA)

    def other() -> None:
        with pytest.raises(ObjectNotFound):
            faulty_store.get("nope")

    at_once(other)
    faulty.faults.append(403)
    assert faulty_store.get("k").data == DATA
    assert ways(faulty) == ["direct", "direct", "header"]


def test_answer_that_ended_is_not_followed(faulty, faulty_store, at_once):
    """What is left of an object that was cut short is somebody else's connection by then."""
    faulty.origin.hold("k", DATA[:1000])
    faulty.origin.hold("other", DATA)
    series, view, others = RangeSeries(10_000), memoryview(bytearray(1000)), []

    def other() -> None:
        client = faulty_store._connection._client
        others.append(faulty_store._direct.request(obstore, client, "other", 0, 200_000))

    at_once(other)
    faulty_store.fill("k", 0, view, series=series)
    assert bytes(view) == DATA[:1000]
    assert not series.is_under_way
    assert others[0].all() == DATA[:200_000]
    with pytest.raises(Corrupt):
        faulty_store.fill("k", 1000, view, series=series)
    assert faulty_store.get("other").data == DATA


@pytest.mark.parametrize("nbytes", [1000, 200_000])
def test_what_came_before_a_stall_is_kept(faulty, faulty_options, nbytes):
    faulty.origin.hold("k", DATA)
    store = open_store("s3://bucket", {**faulty_options, "timeout_s": 2})
    view = memoryview(bytearray(nbytes))
    faulty.faults.append("stall")
    store.fill("k", 0, view)
    assert bytes(view) == DATA[:nbytes]
    assert asked(faulty) == [f"0-{nbytes - 1}", f"{nbytes // 2}-{nbytes - 1}"]
    store.close()


def test_what_nobody_takes_is_closed(faulty, faulty_store):
    faulty.origin.hold("k", DATA)
    direct = faulty_store._direct
    answers = [direct.request(obstore, faulty_store._connection._client, "k", 0, 10) for _ in range(4)]
    for one in answers:
        one.all()
    kept = direct._idle.pop()
    for one in direct._idle:
        one.idle_since -= 60
    direct._keep(kept)
    assert list(direct._idle) == [kept]
    assert [one._socket.fileno() == -1 for one in answers].count(True) == 3


def test_what_was_said_meanwhile_is_no_answer(faulty, faulty_store, monkeypatch):
    """A connection that was idle is looked at before it is asked again."""
    faulty.origin.hold("k", DATA)
    assert faulty_store.get("k").data == DATA
    monkeypatch.setattr("loader.storage.cloud.range_requests.LOOKED_AT_S", 0.0)
    monkeypatch.setattr(HttpConnection, "is_quiet", lambda _: False)
    assert faulty_store.get("k").data == DATA
    assert len(faulty._threads) == 3, "the listener, and a connection for each"


def test_nothing_goes_over_http_to_who_forbids_it(faulty, faulty_options):
    store = open_store("s3://bucket", {**faulty_options, "allow_http": False, "retry_deadline_s": 0})
    with pytest.raises(StoreError):
        store.get("k")
    assert faulty.requests == []


# proxies and TLS


@pytest.fixture
def proxy(faulty, shared):
    server = shared("servers/http").HttpServer(faulty.origin)
    yield server
    server.close()


def test_behind_a_proxy_obstore_asks(faulty, faulty_options, monkeypatch, proxy):
    faulty.origin.hold("k", DATA)
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy.endpoint)
    store = open_store("s3://bucket", faulty_options)
    assert store.get("k").data == DATA
    assert (ways(proxy), faulty.requests) == (["header"], [])
    store.close()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    store = open_store("s3://bucket", faulty_options)
    assert store.get("k").data == DATA
    assert ways(faulty) == ["direct"]
    store.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory, shared) -> tuple[str, Path]:
    """(its authority's text, a folder with server.pem and server.key), of 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    return shared("servers/certificates").write_certificates(folder), folder


@pytest.fixture
def secure(certificate, shared):
    """The small S3, over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1] / "server.pem", certificate[1] / "server.key")
    server = shared("servers/http").HttpServer(shared("servers/s3").SmallS3("bucket"), tls=context)
    yield server
    server.close()


def test_over_tls(secure, certificate):
    secure.origin.hold("k", DATA)
    options = {
        "key": "k",
        "secret": "ssss",
        "endpoint": secure.endpoint,
        "retry_base_s": 0.001,
        "timeout_s": 20,
    }
    store = open_store("s3://bucket", {**options, "root_certificate": certificate[0]})
    for fault in (None, "drop", "reset", 503, None):
        secure.faults.append(fault)
        assert store.get_range("k", 10, 1000).data == DATA[10:1010]
        view = memoryview(bytearray(len(DATA)))
        store.fill("k", 0, view)
        assert bytes(view) == DATA
        assert store.get("k").data == DATA
    assert set(ways(secure)) == {"direct"}
    store.close()


def test_server_that_nobody_vouches_for_is_asked_for_nothing(secure):
    secure.origin.hold("k", DATA)
    options = {"key": "k", "secret": "ssss", "endpoint": secure.endpoint, "retry_deadline_s": 0}
    store = open_store("s3://bucket", options)
    for _ in range(4):
        with pytest.raises(StoreError):
            store.get_range("k", 0, 10)
    assert secure.requests == []
    store.close()


# many objects at once


@pytest.fixture
def crowd(faulty_store, faulty, monkeypatch):
    """So many others are read that one connection each is enough."""
    monkeypatch.setattr("loader.storage.stream._readers", WeakSet())
    monkeypatch.setattr("loader.storage.stream.BODY_BYTES", BODY_BYTES)
    faulty.origin.hold("other", b"x")
    others = [PieceReader(faulty_store, "other") for _ in range(MANY)]
    faulty.requests.clear()
    faulty.headers.clear()
    yield others
    for one in others:
        one.close()


def asked(faulty) -> list[str]:
    return [headers["range"].removeprefix("bytes=") for headers in faulty.headers if "range" in headers]


BIG = Random(4).randbytes(BODY_BYTES + 3 * MIB + 5)


def test_one_of_many_is_one_answer_that_is_read_as_it_comes(faulty, faulty_store, crowd, tmp_path):
    faulty.origin.hold("k", BIG)
    digest = hashlib.sha256()
    download(faulty_store, "k", tmp_path / "file", seen=digest.update)
    assert digest.digest() == hashlib.sha256(BIG).digest()
    assert (tmp_path / "file").read_bytes() == BIG
    begin, end = MIB + BODY_BYTES, len(BIG) - 1
    assert asked(faulty) == [f"0-{MIB - 1}", f"{MIB}-{begin - 1}", f"{begin}-{end}"]


def test_answer_is_for_so_much_and_no_more():
    class Follows:
        follows = True

    others = [SequentialRead(Follows(), "k", 2**30) for _ in range(MANY + 1)]
    assert others[0].next_bytes(5) == MIB // 2
    assert others[0]._series.stop == 5 + 64 * MIB


def test_alone_it_is_read_ahead(faulty, faulty_store, crowd, tmp_path):
    faulty.origin.hold("k", BIG)
    crowd.pop().close()
    download(faulty_store, "k", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BIG
    assert len(asked(faulty)) == 7


@pytest.mark.parametrize(
    ("number", "fault"),
    [(0, 503), (1, "drop"), (2, "reset"), (1, "stall"), (0, "short"), (1, "short"), (2, "short"), (2, 403)],
)
def test_one_of_many_under_a_fault(faulty, faulty_options, crowd, tmp_path, number, fault):
    """What came is kept: the rest is asked for, and no byte is seen twice."""
    store = open_store("s3://bucket", {**faulty_options, "timeout_s": 3 if fault == "stall" else 20})
    faulty.origin.hold("k", BIG)
    starts, left = [0, MIB, MIB + BODY_BYTES], [fault]

    def fault_of(request):
        low = request.headers.get("range", "bytes=-").removeprefix("bytes=").partition("-")[0]
        return left.pop() if left and low == str(starts[number]) else None

    faulty.fault_of = fault_of
    digest = hashlib.sha256()
    download(store, "k", tmp_path / "file", seen=digest.update)
    assert digest.digest() == hashlib.sha256(BIG).digest()
    assert not left
    again = [one for one in asked(faulty) if not one.startswith(tuple(f"{start}-" for start in starts))]
    assert (len(again) == 1) is (fault in ("reset", "stall", "short")) or fault == 403
    store.close()


def test_one_of_many_that_is_replaced_is_changed(faulty, faulty_store, crowd, tmp_path):
    faulty.origin.hold("k", BIG)

    def fault_of(request):
        if f"={MIB + BODY_BYTES}-" in request.headers.get("range", ""):
            faulty.origin.hold("k", BIG[::-1])

    faulty.fault_of = fault_of
    with pytest.raises(Changed):
        download(faulty_store, "k", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_who_stops_in_the_middle_leaves_no_connection(faulty, faulty_store, crowd):
    faulty.origin.hold("k", BIG)
    pieces = PieceReader(faulty_store, "k")
    for _ in range(3):
        pieces.next()
    answering = faulty._threads[-1]
    pieces.close()
    del pieces
    answering.join(PATIENCE_S)
    assert not answering.is_alive()


def test_read_that_asks_for_nothing_is_no_request(faulty, faulty_store, crowd, tmp_path):
    faulty.origin.hold("k", BIG)
    seen = Traffic()
    with count_requests(seen):
        download(faulty_store, "k", tmp_path / "file")
    assert (seen.requests, seen.retries) == (4, 0)
    assert len(faulty.requests) == 4, "a look, and three ranges"
    pieces = PieceReader(faulty_store, "k")
    while pieces.next():
        pass
    assert pieces.requests == 3


# the connection


class Chopped:
    """A socket whose bytes come so many at a time, then more as they are asked for, and then an end."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self.data, self.sizes, self.is_closed = data, sizes, False
        self.calls: list[object] = []

    def sendall(self, request: bytes) -> None:
        self.calls.append("send")

    def setsockopt(self, *option: int) -> None:
        self.calls.append(option)

    def recv_into(self, view: memoryview, nbytes: int = 0, flags: int = 0) -> int:
        self.calls.append("receive")
        count = min(
            len(view), nbytes or len(view), self.sizes.pop(0) if self.sizes else 2**30, len(self.data)
        )
        view[:count] = self.data[:count]
        self.data = self.data[count:]
        return count

    def close(self) -> None:
        self.is_closed = True


def over(data: bytes, sizes: list[int], monkeypatch_context) -> tuple[HttpConnection, Chopped]:
    chopped = Chopped(data, sizes)
    with monkeypatch_context() as patch:
        patch.setattr(connection, "_connect", lambda *_: (chopped, 0))
        return HttpConnection(Place("h", 80, None), 60, 60), chopped


def answer(body: bytes, extra: str = "", start: int = 100) -> bytes:
    head = (
        f'HTTP/1.1 206 Partial Content\r\nX-A: 1\r\ncontent-length:{len(body)}\r\n{extra}ETag:  "e" \r\n'
        f"Content-Range: bytes {start}-{start + len(body) - 1}/1000000\r\n\r\n"
    )
    return head.encode() + body


def test_what_comes_is_acknowledged_at_once(monkeypatch):
    """Or a server whose head goes before its body waits 40 ms for that. It is one request's alone."""
    said = answer(DATA[:50])
    found, chopped = over(said * 2, [len(said)], monkeypatch.context)
    at_once = (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    for _ in range(2):
        chopped.calls.clear()
        found.request(b"", 50, lambda _: None)
        found.all()
        assert chopped.calls[:3] == ["send", at_once, "receive"]


@given(
    nbytes=st.one_of(st.integers(1, 3000), st.integers(SMALL_BYTES - 2, SMALL_BYTES + HEAD_BYTES + 600)),
    padding=st.one_of(st.integers(0, 2000), st.integers(HEAD_BYTES - 400, HEAD_BYTES - 150)),
    sizes=st.lists(st.integers(1, 5000), max_size=20),
    views=st.lists(st.integers(1, 100_000), max_size=4),
)
@settings(deadline=None)
def test_body_is_what_was_sent_however_it_comes(nbytes, padding, sizes, views):
    body, kept = Random(nbytes).randbytes(nbytes), []
    sent = answer(body, f"X-Padding: {'p' * padding}\r\n")
    made, chopped = over(sent, list(sizes), pytest.MonkeyPatch.context)
    assert made.request(b"GET", nbytes, kept.append) == PLAIN
    assert (made.first, made.nbytes, made.size, made.etag) == (100, nbytes, 1_000_000, '"e"')
    got = b""
    for size in views:
        assert not kept or len(got) == nbytes
        view = memoryview(bytearray(size))
        count = sum(made.into(view)) if len(got) < nbytes else 0
        got += bytes(view[:count])
    if len(got) < nbytes:
        assert kept == []
        got += made.all()
    assert got == body
    assert kept == [made], "once, and when all was read"
    assert not chopped.is_closed


@given(cut=st.integers(0, 3300), sizes=st.lists(st.integers(1, 500), max_size=10), by=st.booleans())
@settings(deadline=None)
def test_what_ends_anywhere_is_broken(cut, sizes, by):
    sent, kept = answer(bytes(3000)), []
    cut = min(cut, len(sent) - 1)
    made, chopped = over(sent[:cut], list(sizes), pytest.MonkeyPatch.context)

    def read() -> None:
        made.request(b"GET", 3000, kept.append)
        sum(made.into(memoryview(bytearray(3000)))) if by else made.all()

    with pytest.raises(Broken) as caught:
        read()
    assert chopped.is_closed
    assert kept == []
    assert caught.value.at_once is (cut == 0)


NOT_THE_RANGE = {
    "": Broken,
    "\r\n\r\n": 0,
    "SSH-2.0-OpenSSH\r\n\r\n": 0,
    "HTTP/1.1 2x6 no\r\n\r\n": 0,
    "HTTP/1.1 206 x\r\n" + "X: " + "y" * 200_000 + "\r\n\r\n": 0,
    "HTTP/1.1 100 Continue\r\n\r\n": 100,
    "HTTP/1.1 206 x\r\nTransfer-Encoding: chunked\r\n" + answer(b"ab").decode()[32:]: 0,
    "HTTP/1.1 404 x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n": 404,
    "HTTP/1.1 404 x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": 404,
    "HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n": 404,
    "HTTP/1.1 404 x\r\nContent-Length: 3\r\n\r\nabc": 404,
    "HTTP/1.1 404 x\r\nContent-Length: 3\r\nConnection: Close\r\n\r\nabc": 404,
    "HTTP/1.0 404 x\r\nContent-Length: 3\r\n\r\nabc": 404,
    "HTTP/1.1 404 x\r\n\r\nabc": 404,
    "HTTP/1.1 403 x\r\nContent-Length: 200000\r\n\r\n" + "x" * 200_000: 403,
    "HTTP/1.1 204 x\r\n\r\n": 204,
}
KEPT = [7, 8, 9, 10]


@pytest.mark.parametrize("number", range(len(NOT_THE_RANGE)))
def test_other_answers(number):
    sent, expected = [*NOT_THE_RANGE.items()][number]
    for sizes in ([], [1] * 40, [7, 11, 13]):
        kept: list[HttpConnection] = []
        made, chopped = over(sent.encode(), list(sizes), pytest.MonkeyPatch.context)
        if expected is Broken:
            with pytest.raises(Broken):
                made.request(b"GET", 10, kept.append)
        else:
            assert made.request(b"GET", 10, kept.append) == expected
            made.discard()
        assert (kept == [made]) is (number in KEPT)
        assert chopped.is_closed is not (number in KEPT)


@pytest.mark.parametrize("extra", ["Connection: close\r\n", "CONNECTION:  Close \r\n"])
def test_server_that_closes_is_not_asked_again_there(extra):
    kept: list[HttpConnection] = []
    made, chopped = over(answer(b"abc", extra), [], pytest.MonkeyPatch.context)
    made.request(b"GET", 3, kept.append)
    assert made.all() == b"abc"
    assert kept == []
    assert chopped.is_closed


def test_what_a_server_says_unasked_is_seen():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for say in (lambda there: there.sendall(b"HTTP/1.1 408 too slow"), lambda there: there.close()):
            made = HttpConnection(Place("127.0.0.1", listener.getsockname()[1], None), 5, 5)
            there, _ = listener.accept()
            assert made.is_quiet()
            say(there)
            until(lambda made=made: not made.is_quiet())
            there.close()


def send(there: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the client hung up
        there.sendall(data)


def read_all(made: HttpConnection, nbytes: int) -> bytes:
    made.request(b"GET", nbytes, lambda _: None)
    return made.all()


def test_addresses_share_the_time(monkeypatch):
    """Where one family leads nowhere the other is tried, and is the first from then on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, tried = listener.getsockname()[1], []
        nowhere = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))
        here = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))

        class Dialling(socket.socket):
            def __init__(self, family, *rest) -> None:
                self.asked = family  # of which this machine may have none
                super().__init__(socket.AF_INET, *rest)

            def connect(self, address) -> None:
                tried.append((address[0], self.gettimeout()))
                if self.asked == socket.AF_INET6:
                    raise OSError(101, "Network is unreachable")
                super().connect(address)

        monkeypatch.setattr(connection, "_answered", {})
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [nowhere, nowhere, nowhere, here, here])
        monkeypatch.setattr(socket, "socket", Dialling)
        for _ in range(2):
            HttpConnection(Place("host", port, None), 8, 5).close()
        assert [address for address, _ in tried] == ["::1", "127.0.0.1", "127.0.0.1"]
        assert tried[0][1] == pytest.approx(4, abs=0.5)
        monkeypatch.setattr(connection, "_answered", {})
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [nowhere] * 8)
        with pytest.raises(Broken, match="no connection: Network is unreachable"):
            HttpConnection(Place("host", port, None), 8, 5)
        assert len(tried) == 5


def test_server_that_says_nothing():
    """The kernel keeps the time: of a head, of a small body and of a large one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for sent in (b"", b"HTTP/1.1 206", answer(bytes(1000))[:-1], answer(bytes(500_000))[:-1]):
            made = HttpConnection(Place("127.0.0.1", listener.getsockname()[1], None), 5, 0.2)
            there, _ = listener.accept()
            thread = threading.Thread(target=send, args=(there, sent))
            thread.start()
            try:
                with pytest.raises(Broken, match=r"it took longer than 0\.2 s"):
                    read_all(made, len(sent))
            finally:
                thread.join()
                there.close()


def test_server_that_is_slower_than_it_may_be():
    """Each byte in time, and all of them not."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = HttpConnection(Place("127.0.0.1", listener.getsockname()[1], None), 5, 0.3)
        there, _ = listener.accept()
        stop, head = threading.Event(), b"HTTP/1.1 206 x\r\n" + b"X-Padding: p" * 300
        sent: list[int] = []

        def trickle() -> None:
            for letter in head:
                send(there, bytes([letter]))
                sent.append(letter)
                if stop.wait(0.02):
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            with pytest.raises(Broken, match="it took longer"):
                read_all(made, 10)
            assert len(sent) < len(head)
        finally:
            stop.set()
            thread.join()
            there.close()
