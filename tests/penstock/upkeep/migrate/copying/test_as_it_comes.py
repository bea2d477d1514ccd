"""From S3 to S3 an object is sent on while it comes: right at the end, or not there; or held and put as ever."""

import hashlib
from contextlib import closing
from random import Random

import pytest
from google_crc32c import value

from loader.errors import AlreadyExists, Changed, Corrupt
from loader.storage import open_store, sequential_read
from loader.storage.cloud.range_requests import REFUSALS
from penstock.upkeep.copying import copy_one as send_on
from penstock.upkeep.copying.copy_one import Transfer
from penstock.upkeep.copying.items import KINDS, Item, Pace

DATA = Random(9).randbytes(700_000)
SHA256 = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
CRC32C = f"crc32c:{value(DATA):08x}"
OPTIONS = {"key": "a", "secret": "b", "retry_base_s": 0.001, "retry_cap_s": 0.002, "retry_deadline_s": 20}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """One object is many."""
    monkeypatch.setattr(sequential_read, "LOOK_BYTES", 50_000)
    monkeypatch.setattr(send_on, "LOOK_BYTES", 50_000)


@pytest.fixture
def servers(shared):
    """Source and target."""
    made = [shared("servers/http").HttpServer(shared("servers/s3").SmallS3()) for _ in range(2)]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def copy(servers):
    """copy(item) -> Copied, of the key "k" unless it says another."""
    source, target = (open_store("s3://bucket", {**OPTIONS, "endpoint": one.endpoint}) for one in servers)

    copies = {hash: Transfer(source, target, Pace(), hash=hash) for hash in KINDS}

    def copy(pace=None, hash="sha256", **item):
        how = Transfer(source, target, pace) if pace else copies[hash]
        return how(Item(**{"path": "k", "nbytes": len(DATA)} | item))

    with closing(source), closing(target):
        yield copy


def puts(server):
    """Of each PUT: "sent" by an address, or "signed" or "unsigned" by headers."""
    said = []
    for request, headers in zip(server.requests, server.headers, strict=True):
        if request.startswith("PUT"):
            covered = headers.get("x-amz-content-sha256")
            said.append({None: "sent", "UNSIGNED-PAYLOAD": "unsigned"}.get(covered, "signed"))
    return said


@pytest.mark.parametrize(
    ("said", "found"),
    [({}, SHA256), ({"hash": "crc32c"}, CRC32C), ({"digest": SHA256}, SHA256), ({"digest": CRC32C}, CRC32C)],
)
def test_it_is_sent_on_and_hashed_on_the_way(servers, copy, said, found):
    source, target = servers
    source.origin.hold("k", DATA)
    copied = copy(**said)
    assert (copied.digest, copied.nbytes, copied.written) == (found, len(DATA), True)
    assert target.origin.held() == {"k": DATA}
    assert puts(target) == ["sent"]
    assert [headers["range"] for headers in source.headers] == [f"bytes=0-{len(DATA) - 1}"]


def test_what_it_takes_is_counted(servers, copy):
    class Counted(Pace):
        requests = nbytes = 0

        def take(self, requests=0, nbytes=0):
            self.requests, self.nbytes = self.requests + requests, self.nbytes + nbytes

    source, target = servers
    source.origin.hold("k", DATA)
    pace = Counted()
    copy(pace)
    assert pace.requests == len(source.requests) + len(target.requests) == 2
    assert pace.nbytes == len(DATA)


@pytest.mark.parametrize("said", [f"sha256:{'0' * 64}", "crc32c:00000001"])
def test_what_is_not_what_it_should_be_does_not_arrive(servers, copy, said):
    source, target = servers
    source.origin.hold("k", DATA)
    with pytest.raises(Corrupt, match="It was not copied"):
        copy(digest=said)
    assert target.origin.held() == {}
    source.origin.hold("l", DATA)
    copy(path="l")
    assert (target.origin.held(), puts(target)) == ({"l": DATA}, ["sent"])


@pytest.mark.parametrize("etag", ["listed", ""])
def test_an_object_that_is_replaced_on_the_way_is_named(servers, copy, etag):
    source, target = servers
    source.origin.hold("k", DATA)
    answers = []

    def replaced(request):
        answers.append(request)
        if len(answers) == 2:
            source.origin.hold("k", DATA[::-1])
        return "reset" if len(answers) == 1 else None

    source.fault_of = replaced
    with pytest.raises(Changed):
        copy(etag=etag and f'"{hashlib.md5(DATA, usedforsecurity=False).hexdigest()}"')
    assert target.origin.held() == {}


@pytest.mark.parametrize("fault", [503, "drop", "reset", "short"])
def test_a_source_that_breaks_off_is_asked_for_the_rest(servers, copy, fault):
    source, target = servers
    source.origin.hold("k", DATA)
    source.faults.extend(["reset", fault])
    assert copy().digest == SHA256
    assert target.origin.held() == {"k": DATA}
    assert puts(target) == ["sent"]
    assert len(source.requests) == 3


@pytest.mark.parametrize("fault", [400, 403, 409, 500, 503, "drop", "commit-drop"])
def test_a_target_that_did_not_take_it_gets_it_as_ever(servers, copy, fault):
    source, target = servers
    source.origin.hold("k", DATA)
    target.faults.append(fault)
    assert copy().digest == SHA256
    assert target.origin.held() == {"k": DATA}
    assert puts(target) == ["sent", "unsigned"]


@pytest.mark.parametrize(("hash", "found"), [("sha256", SHA256), ("crc32c", CRC32C)])
def test_what_broke_on_the_way_is_put_again(servers, copy, hash, found):
    source, target = servers
    source.origin.hold("k", DATA)
    origin = target.origin

    def broken_once(request):
        if request.method == "PUT" and "x-amz-content-sha256" not in request.headers:
            origin.hold("k", request.body[:-1] + b"X")
            return 200, b"", {"etag": '"00000000000000000000000000000000"'}
        return origin(request)

    target.origin = broken_once
    assert copy(hash=hash).digest == found
    assert origin.held() == {"k": DATA}
    assert puts(target) == ["sent", "signed"]


def test_what_is_there_under_another_etag_stays(servers, copy):
    """As with KMS: it is read once, and what comes next is not sent so."""
    source, target = servers
    source.origin.hold("k", DATA)
    source.origin.hold("l", DATA)
    target.faults.append("etag")
    assert copy().digest == SHA256
    assert puts(target) == ["sent"]
    assert copy(path="l").digest == SHA256
    assert puts(target) == ["sent", "signed"]
    assert target.origin.held() == {"k": DATA, "l": DATA}


def test_what_cannot_be_read_there_is_put_again(servers, copy):
    source, target = servers
    source.origin.hold("k", DATA)
    target.fault_of = lambda request: "etag" if request.method == "PUT" else 403
    assert copy().digest == SHA256
    assert puts(target) == ["sent", "signed"]


def test_a_source_whose_etags_are_no_md5_is_asked_once(servers, copy):
    source, target = servers
    source.fault_of = lambda _: "etag"
    for number, etag in enumerate(("", "", '"another"')):
        source.origin.hold(f"{number}", DATA)
        before = len(source.requests)
        assert copy(path=f"{number}", etag=etag).digest == SHA256
        assert len(source.requests) - before == (2 if number == 0 else 1)
    assert puts(target) == ["signed"] * 3


def test_a_source_that_is_not_read_directly(servers, copy):
    source, target = servers
    source.origin.hold("k", DATA)
    source.fault_of = lambda request: 403 if "X-Amz-Signature" in request.target else None
    for number in range(REFUSALS + 1):
        assert copy(replace=number > 0).digest == SHA256
    assert target.origin.held() == {"k": DATA}


def test_an_object_of_somebody_else_stays(servers, copy):
    source, target = servers
    source.origin.hold("k", DATA)
    target.origin.hold("k", b"another")
    with pytest.raises(AlreadyExists):
        copy()
    assert target.origin.held() == {"k": b"another"}
    assert copy(replace=True).written
    assert target.origin.held() == {"k": DATA}


def test_no_bytes_at_all(servers, copy):
    source, target = servers
    source.origin.hold("k", b"")
    assert copy(nbytes=0).digest == f"sha256:{hashlib.sha256(b'').hexdigest()}"
    assert target.origin.held() == {"k": b""}


def test_an_object_that_was_copied_and_is_the_same_is_not_written(servers, copy):
    source, target = servers
    source.origin.hold("k", DATA)
    assert not copy(was=SHA256).written
    with pytest.raises(Changed, match="was replaced since it was copied"):
        copy(was="0" * 64)
    assert puts(target) == []
    assert copy(was="0" * 64, replace=True).written
    assert target.origin.held() == {"k": DATA}
