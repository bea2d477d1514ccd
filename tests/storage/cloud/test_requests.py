"""What a store asks of a server, and what it never relies on since some server does not keep it."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from loader.errors import AlreadyExists
from loader.storage import ByteRange, Store, open_store
from loader.storage.store import list_from

DATA = bytes(range(256)) * 40
CONDITIONS = {
    "s3": ("if-none-match", "*"),
    "gs": ("x-goog-if-generation-match", "0"),
    "az": ("if-none-match", "*"),
}


def use_every_verb(store: Store, tmp_path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    store.put("a", DATA)
    store.put_if_absent("b", DATA)
    store.put_file("c", str(tmp_path / "file"))
    pinned = store.get_range("a", 5, 10).etag
    store.get_ranges("a", [ByteRange(0, 5), ByteRange(9_000, 5)], etag=pinned, max_gap=0)
    store.get("a"), store.head("a"), store.copy("a", "d")
    assert [info.key for info in store.list(start_after="b")] == ["c", "d"]
    with store.open_stream("a") as stream:
        assert stream.read() == DATA


@pytest.mark.parametrize("protocol", ["gs", "az"])  # (the small S3 copies nothing)
def test_nothing_is_asked_that_some_store_does_not_keep(faulty, faulty_store, tmp_path):
    """Suffix ranges (Azure), listings from a key on (differ), swaps and copies on a condition (Ceph, S3)."""
    use_every_verb(faulty_store, tmp_path)
    for headers in faulty.headers:
        assert not {"if-match", "if-unmodified-since", "x-ms-if-tags", "if-modified-since"} & set(headers)
        assert not headers.get("range", "").startswith("bytes=-")
    for asked, headers in zip(faulty.requests, faulty.headers, strict=True):
        assert not re.search(r"start-after|startOffset|startFrom", asked)
        if "x-goog-copy-source" in headers or "x-ms-copy-source" in headers:
            assert CONDITIONS["gs"][0] not in headers
            assert CONDITIONS["az"][0] not in headers


def test_create_is_one_conditional_put(faulty, faulty_store, protocol):
    """The log grows so: never in parts, whose completion Ceph does not make conditional."""
    faulty_store.put_if_absent("log/1", bytes(6 * 2**20))
    name, value = CONDITIONS[protocol]
    assert [asked.split()[0] for asked in faulty.requests] == ["PUT"]
    assert "?" not in faulty.requests[0]
    assert faulty.headers[0][name] == value
    faulty_store.put("other", b"x")
    assert name not in faulty.headers[1]


def test_slow_reader_holds_no_request_open(faulty, faulty_store):
    """A stream is bounded ranges, each at full speed into memory: what it costs is counted, not timed."""
    data = bytes(3 * 2**20)
    faulty.origin.hold("k", data)
    with faulty_store.open_stream("k") as stream:
        first = stream.read(10)
        asked = len(faulty.requests)
        assert asked == 2, "its size, and the first range"
        assert first + stream.read() == data
    spans = [headers["range"] for headers in faulty.headers if "range" in headers]
    assert spans == ["bytes=0-1048575", "bytes=1048576-3145727"]


def test_no_request_is_larger_than_16_mib(faulty, faulty_store):
    faulty.origin.hold("k", bytes(40 * 2**20))
    assert faulty_store.get_range("k", 0, 1).data == b"\0"
    faulty_store.get_ranges("k", [ByteRange(0, 40 * 2**20)])
    sizes = []
    for span in {headers["range"] for headers in faulty.headers}:  # one that took too long is asked for again
        low, high = (int(number) for number in span.removeprefix("bytes=").split("-"))
        sizes.append(high - low + 1)
    assert max(sizes) == 16 * 2**20
    assert sum(sizes) == 40 * 2**20 + 1


def test_one_of_many_creators_wins_though_answers_are_lost(faulty, faulty_options, protocol):
    """Every second answer to a create does not arrive: the key is read again, and that decides."""
    store = open_store(f"{protocol}://bucket", faulty_options)
    lost = iter(["commit-drop", None] * 16)
    faulty.fault_of = lambda request: next(lost, None) if request.method == "PUT" else None

    def create(number: int) -> bool:
        try:
            store.put_if_absent("log/1", b"writer %d" % number)
        except AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(create, range(16)))
    assert won.count(True) == 1
    assert faulty.origin.held() == {"log/1": b"writer %d" % won.index(True)}


def test_listing_that_goes_on_asks_the_server_to_begin_there(faulty, faulty_store, protocol):
    """By each provider's own parameter; what servers make of it is filtered here once more."""
    for number in range(8):
        faulty.origin.hold(f"k{number}", b"x")
    assert [info.key for info in list_from(faulty_store, "", "k5")] == ["k6", "k7"]
    parameter = "startFrom" if protocol == "az" else "start-after"
    assert f"{parameter}=k5" in faulty.requests[0], faulty.requests
