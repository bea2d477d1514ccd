"""Objects as files of this machine, and in pieces: whole or not at all, whatever happens at whichever piece."""

import errno
import hashlib
import os
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pickle import PickleBuffer
from random import Random

import pytest

from loader.errors import Changed, Corrupt, ObjectNotFound, StoreError, Transient
from loader.storage import open_store
from loader.storage.cloud.reads import read_whole
from loader.storage.files import MemoryBudget, download, put_held, upload
from loader.storage.mirror import MirroredStore
from loader.storage.stream import PieceReader
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until

MIB = 2**20
DATA = Random(8).randbytes(9 * MIB) + b"and the rest"  # pieces of 1, 2, 4 MiB, and what is left
AT = range(4)  # pieces


@pytest.fixture(params=["s3"])
def protocol(request: pytest.FixtureRequest) -> str:
    """What is read in pieces does not depend on the provider (test_conformance.py reads them all)."""
    return str(request.param)


@pytest.fixture(params=["direct", "obstore"])
def faulty_options(request: pytest.FixtureRequest, faulty_options: dict[str, object]) -> dict[str, object]:
    """Both ways in which S3 is read, of which the other providers have the second."""
    return {**faulty_options, "direct_reads": request.param == "direct"}


def on_piece(faulty, number: int, fault: object, times: int = 1) -> None:
    """The requests for the range at which a piece begins meet a fault, so many times."""
    starts = [0, MIB, 3 * MIB, 7 * MIB]
    left = [times]

    def fault_of(request):
        low = request.headers.get("range", "bytes=-").removeprefix("bytes=").partition("-")[0]
        if request.method == "GET" and low == str(starts[number]) and left[0]:
            left[0] -= 1
            return fault
        return None

    faulty.fault_of = fault_of


@pytest.mark.parametrize("fault", [503, "drop", "reset", "stall", "short"])
@pytest.mark.parametrize("number", AT)
def test_fault_at_any_piece_is_cured(faulty, faulty_options, tmp_path, number, fault):
    """What arrived is kept: after a reset in mid-body the other half is asked for, and no byte is seen twice."""
    store = open_store("s3://bucket", {**faulty_options, "timeout_s": 0.5 if fault == "stall" else 20})
    faulty.origin.hold("k", DATA)
    on_piece(faulty, number, fault, times=1 if fault == "stall" else 2)
    digest = hashlib.sha256()
    info = download(store, "k", tmp_path / "file", seen=digest.update)
    assert (tmp_path / "file").read_bytes() == DATA
    assert digest.hexdigest() == hashlib.sha256(DATA).hexdigest()
    assert info.nbytes == len(DATA)
    assert os.listdir(tmp_path) == ["file"]
    store.close()


def test_broken_answer_is_taken_up_where_it_broke(faulty, faulty_store):
    faulty.origin.hold("k", DATA)
    faulty.faults.append("short")
    view = memoryview(bytearray(1000))
    etag = faulty_store.fill("k", 500, view)
    assert bytes(view) == DATA[500:1500]
    assert etag == faulty_store.head("k").etag
    assert [one["range"] for one in faulty.headers if "range" in one] == ["bytes=500-1499", "bytes=1499-1499"]


def test_what_broke_is_not_taken_up_of_another_object(faulty, faulty_store):
    faulty.origin.hold("k", DATA)
    faulty.faults.extend(["short", "etag"])
    with pytest.raises(Changed):
        faulty_store.fill("k", 0, memoryview(bytearray(1000)))


@pytest.mark.parametrize("number", AT)
def test_object_replaced_at_any_piece_is_changed_and_no_file_is_left(faulty, faulty_store, tmp_path, number):
    faulty.origin.hold("k", DATA)
    (tmp_path / "file").write_bytes(b"before")
    on_piece(faulty, number, "etag")
    with pytest.raises(Changed):
        download(faulty_store, "k", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("number", AT)
def test_flipped_byte_is_in_what_is_hashed(faulty, faulty_store, tmp_path, number):
    faulty.origin.hold("k", DATA)
    on_piece(faulty, number, "flip")
    digest = hashlib.sha256()
    download(faulty_store, "k", tmp_path / "file", seen=digest.update)
    assert digest.hexdigest() != hashlib.sha256(DATA).hexdigest()
    assert digest.hexdigest() == hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()


@pytest.mark.parametrize("number", AT)
def test_piece_that_failed_can_be_asked_for_again(faulty, faulty_options, number):
    store = open_store("s3://bucket", {**faulty_options, "retry_deadline_s": 0})
    faulty.origin.hold("k", DATA)
    on_piece(faulty, number, 503)
    pieces, found, failed = PieceReader(store, "k"), b"", 0
    for _ in range(2 * len(AT)):
        try:
            found += pieces.next()
        except StoreError:
            failed += 1
    assert (found == DATA, failed, bytes(pieces.next())) == (True, 1, b"")
    pieces.close()
    store.close()


def test_large_object_is_asked_for_once(faulty, faulty_store):
    """No request is abandoned, none is larger than 16 MiB, and a reset in any of them is taken up."""
    data = DATA * 4
    faulty.origin.hold("k", data)
    faulty.faults.extend([None, "reset", "short"])
    assert faulty_store.get("k").data == data
    spans = [one["range"].removeprefix("bytes=").split("-") for one in faulty.headers]
    sizes = [int(high) + 1 - int(low) for low, high in spans]
    assert len(sizes) == 5
    assert max(sizes) == 16 * MIB
    assert {int(low) for low, _ in spans} >= {0, 16 * MIB, 32 * MIB}


@pytest.mark.parametrize("number", [1, 2])
def test_large_object_is_all_of_one(faulty, faulty_store, number):
    """It is replaced before its second and before its third request."""
    faulty.origin.hold("k", bytes(33 * MIB))
    asked = []

    def fault_of(request):
        if len(asked) == number:
            faulty.origin.hold("k", b"\1" * (33 * MIB))
        asked.append(request)

    faulty.fault_of = fault_of
    assert faulty_store.get("k").data == b"\1" * (33 * MIB)


def test_empty_object_that_is_filled_meanwhile_is_read(faulty, faulty_store):
    faulty.origin.hold("k", b"")
    faulty.fault_of = lambda request: faulty.origin.hold("k", DATA) if request.method == "HEAD" else None
    assert faulty_store.get("k").data == DATA


def test_who_holds_the_error_holds_no_connection(faulty, faulty_store):
    """The server can write no more to it, and ends it."""
    faulty.origin.hold("k", bytes(33 * MIB))
    etag = faulty_store.head("k").etag
    faulty.origin.hold("k", b"\1" * (33 * MIB))
    with pytest.raises(Changed) as caught:
        faulty_store.fill("k", 0, memoryview(bytearray(33 * MIB)), etag)
    answering = faulty._threads[-1]  # the connection of the last request
    answering.join(PATIENCE_S)
    assert not answering.is_alive()
    assert "replaced" in str(caught.value)


def test_answer_with_more_than_was_asked_for_is_tried_again(faulty, faulty_store):
    faulty.origin.hold("k", DATA)
    small, left = faulty.origin, [b"and more"]

    def longer(request):
        status, body, headers = small(request)
        return status, body + (left.pop() if left else b""), headers

    faulty.origin = longer
    view = memoryview(bytearray(1000))
    faulty_store.fill("k", 500, view)
    assert bytes(view) == DATA[500:1500]
    assert left == []


def test_object_that_ends_early_is_corrupt_at_once(faulty, faulty_options):
    store = open_store("s3://bucket", {**faulty_options, "retry_deadline_s": 0})
    faulty.origin.hold("k", DATA)
    with refusal(
        Corrupt,
        what="range",
        where="s3://bucket/k",
        given=[len(DATA) - 10, len(DATA) + 10],
        accepted=len(DATA),
    ):
        store.fill("k", len(DATA) - 10, memoryview(bytearray(20)))
    with pytest.raises(Corrupt):
        store.get_range("k", len(DATA) - 10, 20)
    store.close()


def test_after_an_error_no_more_is_read():
    asked, go_on = [], threading.Event()

    def fill(offset, view):
        asked.append(offset)
        if offset == 1:
            raise Transient("the connection was reset")
        go_on.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(Transient):
            read_whole(b"x", 100, 1, fill, threads)
        go_on.set()
    assert len(asked) <= 2


def test_large_object_is_in_memory_once():
    tracemalloc.start()
    try:
        with ThreadPoolExecutor(2) as threads:
            data = read_whole(bytes(MIB), 32 * MIB, 16 * MIB, lambda offset, view: None, threads)
        assert len(data) == 32 * MIB
        assert tracemalloc.get_traced_memory()[1] < 40 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("nbytes", [0, 1, 16 * MIB, 16 * MIB + 1])
def test_object_is_one_request_up_to_16_mib(faulty, faulty_store, nbytes):
    faulty.origin.hold("k", bytes(nbytes))
    assert faulty_store.get("k").data == bytes(nbytes)
    assert len(faulty.requests) == (2 if nbytes in (0, 16 * MIB + 1) else 1)


def test_large_object_that_cannot_be_read_says_so(faulty, faulty_options):
    store = open_store("s3://bucket", {**faulty_options, "retry_deadline_s": 0})
    faulty.origin.hold("k", DATA * 3)
    faulty.faults.extend([None, *["drop"] * 4])  # a connection that was idle is not asked twice
    with pytest.raises(Transient):
        store.get("k")
    faulty.faults.clear()
    assert store.get("k").data == DATA * 3, "the store goes on"
    store.close()


def test_memory_and_requests_do_not_grow_beyond_the_pieces(faulty, faulty_store, tmp_path):
    """Requests: one for each 4 MiB, and two more; memory: three pieces, whatever the size."""
    for nbytes in (13 * MIB, 26 * MIB):
        faulty.origin.hold("k", bytes(nbytes))
        pieces, held, before = PieceReader(faulty_store, "k"), set(), len(faulty.requests)
        while piece := pieces.next():
            held.add(id(piece.obj))
            if len(piece) == 4 * MIB:
                assert sum(map(len, pieces._spare)) + 4 * MIB * (1 + len(pieces._reads)) <= 12 * MIB
        assert len(faulty.requests) - before <= -(-nbytes // (4 * MIB)) + 2
        pieces.close()


def test_memory_is_not_filled_again_while_it_is_looked_at(faulty, faulty_store, tmp_path, monkeypatch):
    data, digest, made = Random(9).randbytes(29 * MIB), hashlib.sha256(), []
    faulty.origin.hold("k", data)

    def pieces_of(*given):
        made.append(PieceReader(*given))
        return made[0]

    def look(piece):
        until(lambda: all(future.done() for _, future in made[0]._reads))  # the next ones are there
        digest.update(piece)

    monkeypatch.setattr("loader.storage.files.PieceReader", pieces_of)

    download(faulty_store, "k", tmp_path / "file", seen=look)
    assert digest.hexdigest() == hashlib.sha256(data).hexdigest()
    assert (tmp_path / "file").read_bytes() == data


def test_disk_that_is_full_is_said_and_nothing_is_left(faulty, faulty_store, tmp_path, monkeypatch):
    faulty.origin.hold("k", DATA)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with refusal(StoreError, what="object", where=f"{tmp_path}/file", given="ENOSPC"):
        download(faulty_store, "k", tmp_path / "file")
    assert os.listdir(tmp_path) == []


def test_disk_that_takes_less_at_once_gets_all(faulty, faulty_store, tmp_path, monkeypatch):
    faulty.origin.hold("k", DATA)
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10_000]))
    download(faulty_store, "k", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == DATA


@pytest.mark.parametrize("fails", [False, True])
def test_no_file_and_no_thread_stays_open(faulty, faulty_options, tmp_path, fails):
    store = open_store("s3://bucket", {**faulty_options, "retry_deadline_s": 0})
    faulty.origin.hold("k", DATA * 2)
    caught = None  # which has a hold of all that there was
    if fails:
        on_piece(faulty, 3, 503)
    try:
        download(store, "k", tmp_path / "file")
    except StoreError as error:
        caught = error
    assert (caught is not None) is fails
    opened = [
        os.readlink(f"/proc/self/fd/{one.name}") for one in os.scandir("/proc/self/fd") if is_there(one)
    ]
    assert not [path for path in opened if path.startswith(str(tmp_path))]
    reading = [one for one in threading.enumerate() if one.name.startswith("penstock-stream")]
    for thread in reading:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in reading)
    store.close()


def is_there(descriptor):
    """Not the one that looks."""
    return os.path.lexists(f"/proc/self/fd/{descriptor.name}")


def test_what_a_listing_said_saves_a_request_and_is_held_to(faulty, faulty_store, tmp_path):
    faulty.origin.hold("k", DATA)
    info, asked = faulty_store.head("k"), len(faulty.requests)
    download(faulty_store, "k", tmp_path / "file", info=info)
    assert all(request.startswith("GET") for request in faulty.requests[asked:])
    faulty.origin.hold("k", DATA[::-1])
    with pytest.raises(Changed):
        download(faulty_store, "k", tmp_path / "file", info=info)
    assert (tmp_path / "file").read_bytes() == DATA


def test_what_looks_on_may_stop_it(faulty, faulty_store, tmp_path):
    faulty.origin.hold("k", DATA)

    def stop(piece):
        raise OSError(errno.EINTR, f"{len(piece)} bytes were enough")

    with pytest.raises(OSError, match="1048576 bytes were enough"):
        download(faulty_store, "k", tmp_path / "file", seen=stop)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("place", ["memory://download-{}", "{}/root"])
def test_every_store_gives_files(tmp_path, place):
    store = open_store(place.format(tmp_path))
    mirrored = MirroredStore([open_store("memory://download-empty"), store], lambda _: "one")
    store.put("data/k", DATA)
    for one in (store, mirrored):
        download(one, "data/k", tmp_path / "file", info=one.head("data/k"))
        assert (tmp_path / "file").read_bytes() == DATA
    store.put("empty", b"")
    assert download(store, "empty", tmp_path / "file").nbytes == 0
    assert (tmp_path / "file").read_bytes() == b""
    with pytest.raises(ObjectNotFound):
        download(store, "no", tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("nbytes", [0, 5, 2**18, len(DATA)])
@pytest.mark.parametrize("held", [2**26, 1000], ids=["held", "by the store"])
def test_file_goes_up_and_every_byte_is_seen_once(faulty_store, faulty, tmp_path, monkeypatch, nbytes, held):
    monkeypatch.setattr("loader.storage.files.HELD_BYTES", held)
    (tmp_path / "file").write_bytes(DATA[:nbytes])
    faulty.faults.extend([503, "drop"])
    digest = hashlib.sha256()
    assert upload(faulty_store, tmp_path / "file", "k", seen=digest.update) == nbytes
    assert faulty.origin.held() == {"k": DATA[:nbytes]}
    assert digest.hexdigest() == hashlib.sha256(DATA[:nbytes]).hexdigest()
    with refusal(ObjectNotFound, what="file", where=f"{tmp_path}/no", given="no file"):
        upload(faulty_store, tmp_path / "no", "k", seen=digest.update)


@pytest.mark.parametrize("place", ["memory://upload", "{}/root"])
def test_every_store_takes_files(tmp_path, place):
    store, seen = open_store(place.format(tmp_path)), []
    (tmp_path / "file").write_bytes(DATA)
    assert upload(store, tmp_path / "file", "a/k", seen=lambda piece: seen.append(bytes(piece))) == len(DATA)
    assert b"".join(seen) == DATA == store.get("a/k").data
    assert upload(store, tmp_path / "file", "a/other") == len(DATA)
    assert store.get("a/other").data == DATA


@pytest.mark.parametrize("held", [2**26, 1000], ids=["held", "by the store"])
@pytest.mark.parametrize("change", ["longer", "shorter", "other bytes"])
def test_file_that_is_written_to_meanwhile_is_changed(faulty_store, tmp_path, monkeypatch, held, change):
    monkeypatch.setattr("loader.storage.files.HELD_BYTES", held)
    path, pieces = tmp_path / "file", []
    path.write_bytes(DATA)

    def write(piece):
        pieces.append(len(piece))
        if len(pieces) == 2:
            path.write_bytes({"longer": DATA + b"x", "shorter": DATA[:-1], "other bytes": DATA[::-1]}[change])
            os.utime(path, ns=(0, 0))  # (a clock may be coarser than this test)

    with refusal(Changed, what="file", where="s3://bucket/k", given=f"{tmp_path}/file"):
        upload(faulty_store, path, "k", seen=write)


def test_file_that_has_more_than_it_says_is_not_cut(faulty, faulty_store, tmp_path):
    with pytest.raises(Changed):
        put_held(faulty_store, "k", "/proc/self/status", 0)
    assert faulty.origin.held() == {}


def test_memory_that_a_client_still_reads_is_not_used_again():
    """As of an upload that ran into its timeout: its connection may be sending still."""
    room = MemoryBudget(2**22)
    with room.memory(2**20) as lent:
        memory, reader, lent.is_free = lent.view.obj, PickleBuffer(lent.view), True
    with room.memory(2**20) as lent:
        assert lent.view.obj is not memory
        memory, lent.is_free = lent.view.obj, True
    reader.release()
    with room.memory(2**20) as lent:
        assert lent.view.obj is memory


def test_memory_of_uploads_is_used_again_while_any_is_under_way():
    room = MemoryBudget(2**22, idle=0)
    with room.memory(2**20):
        with room.memory(2**20) as lent:
            memory, lent.is_free = lent.view.obj, True
        with room.memory(2**20) as lent:
            assert lent.view.obj is memory
            lent.is_free = True
        del lent
    with room.memory(2**22) as lent:
        assert lent.view.obj is not memory
    assert sys.getrefcount(memory) == 2, "nobody keeps it"


def test_room_lasts_where_there_is_no_memory():
    """Else every later download of the process would wait for what nobody has."""
    room = MemoryBudget(2**62)
    for _ in range(2):
        with pytest.raises(MemoryError), room.memory(2**61):
            pass
    with room.for_bytes(2**62):
        pass
