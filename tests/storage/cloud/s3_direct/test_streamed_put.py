"""An object that is put while its bytes come: there when all of it was sent, and not before; or to be put as ever."""

import hashlib
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from random import Random

import pytest

from loader.errors import Transient
from loader.storage import open_store
from loader.storage.cloud.http_connection import HEAD_BYTES
from loader.storage.cloud.range_requests import REFUSALS
from loader.storage.shared.requests import Traffic, counted

DATA = memoryview(Random(5).randbytes(600_000))
LARGE = 16 * 2**20
TWIN = f'"{hashlib.md5(DATA, usedforsecurity=False).hexdigest()}"'
pytestmark = pytest.mark.parametrize("protocol", ["s3"])
either = pytest.mark.parametrize("replace", [True, False])


def sent(store, key, data, etag=TWIN, *, replace=False, pieces=3):
    """What `finish_twin` says after all was sent; "no" where it cannot be sent so."""
    sending = store.send_twin(key, len(data), etag, replace=replace)
    if sending is None:
        return "no"
    step = -(-len(data) // pieces)
    for at in range(0, len(data), step):
        if not sending.send(data[at : at + step]):
            break
    try:
        return store.finish_twin(sending, etag)
    finally:
        sending.close()


def puts(faulty):
    return [
        headers for request, headers in zip(faulty.requests, faulty.headers, strict=True) if "PUT" in request
    ]


@either
def test_it_is_there_when_all_was_sent(faulty, faulty_store, replace):
    key = "a b/ü+%.bin"
    if replace:
        faulty.origin.hold(key, b"former")
    assert sent(faulty_store, key, DATA, replace=replace) is True
    assert faulty.origin.held() == {key: DATA.tobytes()}
    (headers,) = puts(faulty)
    assert headers.get("if-none-match") == (None if replace else "*")
    assert headers["content-length"] == str(len(DATA))
    assert "X-Amz-Signature=" in faulty.requests[0]
    assert faulty_store.get(key).data == DATA


def test_one_connection_puts_all(faulty, faulty_store):
    traffic = Traffic()
    with counted(traffic):
        for number in range(5):
            assert sent(faulty_store, f"{number}", DATA)
        assert faulty_store.get_range("0", 5, 9).data == DATA[5:14]
    assert (traffic.requests, traffic.retries) == (6, 0)
    assert len(faulty._threads) == 2, "the listener, and one connection"


def test_what_is_not_sent_whole_is_not_there(faulty, faulty_store):
    sending = faulty_store.send_twin("k", len(DATA), TWIN, replace=False)
    assert sending.send(DATA[:-1])
    assert faulty_store.finish_twin(sending, TWIN) is False
    sending.close()
    assert [info.key for info in faulty_store.list("")] == []
    assert faulty.origin.held() == {}
    assert sent(faulty_store, "l", DATA)


def test_an_object_of_somebody_else_stays(faulty, faulty_store):
    faulty.origin.hold("k", b"another")
    assert sent(faulty_store, "k", DATA) is False
    assert faulty.origin.held() == {"k": b"another"}


@pytest.mark.parametrize("fault", [400, 403, 409, 500, 503, "drop", "commit-drop"])
def test_what_did_not_arrive_for_certain_is_put_as_ever(faulty, faulty_store, fault):
    faulty.faults.append(fault)
    assert sent(faulty_store, "k", DATA) is False
    faulty_store.put_same("k", DATA, TWIN, replace=False)
    assert faulty.origin.held() == {"k": DATA.tobytes()}
    assert sent(faulty_store, "l", DATA) == ("no" if fault in (400, 403) else True)


@pytest.fixture
def answering(faulty_options):
    """answering(said, nbytes) -> a store whose server reads so many bytes of one request, says that, and hangs up."""
    with ExitStack() as stack:

        def answering(said, nbytes):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def serve():
                connection, _ = listener.accept()
                with connection:
                    come = 0
                    while come < nbytes:
                        come += len(connection.recv(2**16))
                    connection.sendall(said)

            stack.enter_context(ThreadPoolExecutor(1)).submit(serve)
            options = {**faulty_options, "endpoint": f"http://127.0.0.1:{listener.getsockname()[1]}"}
            return stack.enter_context(closing(open_store("s3://bucket", options)))

        yield answering


def test_a_server_that_answers_the_head_and_hangs_up(answering):
    store, large = answering(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", 1), memoryview(bytes(LARGE))
    sending = store.send_twin("k", len(large), TWIN, replace=False)
    with closing(sending):
        assert not all(sending.send(large[at : at + 2**20]) for at in range(0, LARGE, 2**20))
        assert store.finish_twin(sending, TWIN) is False


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"what\r\n\r\n",
        b"x" * (HEAD_BYTES + 9),
        b"HTTP/2 200 OK\r\nETag: " + TWIN.encode() + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 403 No\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    ],
)
def test_what_no_store_says_is_no_success(answering, said):
    assert sent(answering(said, len(DATA)), "k", DATA) is False


def test_it_has_its_place_among_what_is_in_flight(faulty, faulty_options):
    with closing(open_store("s3://bucket", {**faulty_options, "max_concurrency": 4})) as store:
        limiter = store._connection._retrier.limiter
        several = [store.send_twin(f"{n}", len(DATA), TWIN, replace=False) for n in range(3)]
        assert limiter._in_flight == 3
        for sending in several:
            sending.close()
        faulty.faults.append(503)
        assert sent(store, "k", DATA) is False
        assert (limiter._in_flight, limiter.limit) == (0, 2)
        assert sent(store, "k", DATA) is True
        assert limiter._in_flight == 0


def test_a_store_that_does_not_answer_is_left_alone_for_a_while(faulty, faulty_store):
    faulty.faults.extend([500] * REFUSALS)
    for _ in range(REFUSALS):
        assert sent(faulty_store, "k", DATA) is False
    assert sent(faulty_store, "k", DATA) == "no"
    assert len(faulty.requests) == REFUSALS


@pytest.mark.parametrize("status", [400, 401, 403, 501])
def test_a_store_that_refuses_is_not_asked_again(faulty, faulty_store, status):
    faulty.faults.append(status)
    assert sent(faulty_store, "k", DATA) is False
    assert sent(faulty_store, "k", DATA) == "no"
    assert faulty_store._direct.is_on, "what it reads is read as ever"


def test_whoever_was_too_slow_may_try_again(faulty, faulty_store):
    origin = faulty.origin
    faulty.origin = lambda _: (400, b"<Error><Code>RequestTimeout</Code></Error>", {})
    assert sent(faulty_store, "k", DATA) is False
    faulty.origin = origin
    assert sent(faulty_store, "k", DATA) is True


@either
def test_another_etag_says_that_it_is_to_be_put_again(faulty, faulty_store, replace):
    """As with KMS, and of bytes that broke on the way."""
    faulty.faults.append("etag")
    assert sent(faulty_store, "k", DATA, replace=replace) is None
    assert sent(faulty_store, "l", DATA, replace=replace) == "no"


@pytest.mark.parametrize("etag", ["", '"abc"', TWIN.replace('"', ""), f'{TWIN[:-1]}-2"', '"another"'])
def test_what_is_no_md5_vouches_for_nothing(faulty, faulty_store, etag):
    assert sent(faulty_store, "k", DATA, etag) == "no"
    assert faulty.requests == []


@pytest.mark.parametrize(
    "option",
    [
        {"server_side_encryption": "AES256"},
        {"sse_kms_key_id": "key", "server_side_encryption": "aws:kms"},
        {"checksum_algorithm": "sha256"},
        {"requester_pays": True},
        {"unsigned_payload": False},
        {"unsigned_payload": True},
        {"direct_reads": False},
        {"skip_signature": True},
    ],
)
def test_what_an_address_does_not_say_is_put_as_ever(faulty, faulty_options, option):
    with closing(open_store("s3://bucket", {**faulty_options, **option})) as store:
        assert sent(store, "k", DATA) == "no"
        store.put_same("k", DATA, TWIN, replace=False)
    assert faulty.origin.held() == {"k": DATA.tobytes()}


def test_the_same_by_the_environment(faulty, faulty_options, monkeypatch):
    monkeypatch.setenv("AWS_SERVER_SIDE_ENCRYPTION", "AES256")
    with closing(open_store("s3://bucket", faulty_options)) as store:
        assert sent(store, "k", DATA) == "no"


def test_nobody_at_home(faulty_options):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    options = {**faulty_options, "endpoint": f"http://127.0.0.1:{port}", "retry_deadline_s": 0.01}
    with closing(open_store("s3://bucket", options)) as store:
        assert sent(store, "k", DATA) == "no"
        with pytest.raises(Transient):
            store.put_same("k", DATA, TWIN, replace=False)
