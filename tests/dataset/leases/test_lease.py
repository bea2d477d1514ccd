"""Leases: one object of each process and root, renewed in the background, given back; no failure of theirs is fatal."""

import gc
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from uuid import uuid4

import pytest

import loader
from loader.dataset.log import leases as renewal
from loader.dataset.log.leases import Lease, Leases, list_leases, parse_lease
from loader.errors import Forbidden, Transient
from loader.storage import open_store
from loader.storage.threads import AwaitedThread
from tests.mortal_store import Death, Killed, stop
from tests.servers.patience import PATIENCE_S
from tests.servers.processes import python

IDS = [f"v-{number:064x}" for number in range(40)]


class Refusing:
    """A store whose puts and deletes raise `error` while it is set; `beaten` is set by each put."""

    def __init__(self, store):
        self.store, self.url, self.error, self.puts = store, store.url, None, 0
        self.gets, self.beaten = [], threading.Semaphore(0)

    def put(self, key, data):
        self.puts += 1
        if self.error:
            raise self.error("no")
        self.store.put(key, data)
        self.beaten.release()

    def delete_many(self, keys):
        if self.error:
            raise self.error("no")
        self.store.delete_many(keys)

    def get(self, key):
        self.gets.append(key)
        return self.store.get(key)

    def list(self, prefix="", start_after=None):
        return self.store.list(prefix, start_after)


@pytest.fixture
def store():
    return Refusing(open_store(f"memory://leases-{uuid4().hex}"))


@pytest.fixture
def lease(store):
    made = Lease(store)
    yield made
    store.error = None
    made.close()


@pytest.fixture
def at_once(monkeypatch):
    """Renewals follow one another without a pause."""
    monkeypatch.setattr(renewal, "RENEW_EVERY_S", 0.001)


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.fixture(autouse=True)
def own_renewal(monkeypatch):
    """A thread that renews what other tests of this process have open goes on as it did, and is not looked at."""
    OTHERS[:] = [thread for thread in threading.enumerate() if thread.name == THREAD]
    own = renewal.Renewal()
    monkeypatch.setattr(renewal, "_RENEWAL", own)
    yield
    own.dismiss()
    for thread in renewing():
        thread.join()


THREAD = "penstock-leases"
OTHERS = []


def renewing():
    return [one for one in threading.enumerate() if one.name == THREAD and one not in OTHERS]


def lease_claims(store):
    return [(one.versions, one.beat) for one in list_leases(store)]


def test_one_object_claims_all_versions(store, lease):
    assert lease.add(IDS[1])
    assert lease.add(IDS[0])
    assert not lease.add(IDS[1])
    assert store.puts == 2
    (one,) = list_leases(store)
    assert (one.versions, one.beat) == ((IDS[0], IDS[1]), 2)
    assert one.key == lease.key == f"leases/{one.holder}.json"
    assert one.holder.startswith(one.host[:10])
    lease.close()
    assert list(list_leases(store)) == []
    assert not lease.active
    assert lease.add(IDS[0])
    assert lease_claims(store) == [((IDS[0],), 1)]


def test_renewing_a_mixture_of_32_versions_is_one_request(store, lease):
    for one in IDS[:32]:
        lease.add(one)
    before = store.puts
    assert lease.beat()
    assert store.puts == before + 1
    assert [len(versions) for versions, _ in lease_claims(store)] == [32]


def test_thread_renews_and_is_gone_with_the_last_lease(store, at_once):
    before = renewing()
    one, two = Lease(store), Lease(store)
    one.add(IDS[0])
    two.add(IDS[1])
    for _ in range(8):
        assert store.beaten.acquire(timeout=PATIENCE_S)
    assert len(renewing()) == 1
    one.close()
    assert renewing()
    two.close()
    assert renewing() == before
    assert list(store.list("leases/")) == []


def test_nothing_is_renewed_before_a_version_is_opened_or_after_the_root_is_closed(url):
    root = loader.Root(url)
    with root.write("d") as writer:
        writer.add("a", {"cls": 1})
    others = renewing()
    root.open("d")
    assert len(renewing()) == 1
    root.close()
    assert renewing() == others


def test_running_loader_renews_whatever_its_batch_rate(tmp_path, at_once):
    """And the lease is that of the root that opened the version: made once, however many batches are made."""
    root = loader.Root(tmp_path)
    with root.write("d") as writer:
        for i in range(50):
            writer.add(f"k{i}", {"cls": i})
    plan = loader.plan({"d": root.open("d")}, seed=0, global_batch=2)
    (first,) = list_leases(root.store)
    with loader.Loader(plan, 0, 1, workers=2, framework="numpy") as batches:
        for _ in range(10_000):
            next(batches)
            (now,) = list_leases(root.store)
            if now.beat > first.beat + 3:
                break
    assert (now.key, now.versions) == (first.key, first.versions)
    assert now.beat > first.beat + 3


def test_thread_takes_over_what_a_failing_store_did_not_take(store, lease, at_once, caplog):
    store.error = Transient
    assert lease.add(IDS[0])
    assert not lease.active
    assert "was not written" in warnings(caplog)[0]
    store.error = None
    assert store.beaten.acquire(timeout=PATIENCE_S)
    assert [versions for versions, _ in lease_claims(store)] == [(IDS[0],)]


def test_where_no_thread_could_be_started_the_next_to_open_starts_one(store, at_once, monkeypatch):
    """Also for what is claimed already; and what is given back meanwhile is given back."""
    real, refusals = threading.Thread.start, [1, 1]

    def start(thread):
        if thread.name == THREAD and refusals:
            refusals.pop()
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    one, two = Lease(store), Lease(store)
    for made in (one, two):
        with pytest.raises(RuntimeError, match="can't start"):
            made.add(IDS[0])
    two.close()
    assert renewing() == []
    assert not one.add(IDS[0])
    assert len(renewing()) == 1
    for _ in range(4):
        assert store.beaten.acquire(timeout=PATIENCE_S)
    one.close()
    assert renewing() == []


def test_renewal_goes_on_beside_a_program_that_was_killed_in_this_process(store, lease, at_once):
    """Tests kill a program this way at one of its requests. Other programs of the process share the thread."""
    death = Death(2, die=stop)
    dead = Lease(death.of(store))
    dead.add(IDS[0])
    with pytest.raises(Killed):
        dead.beat()
    while store.beaten.acquire(blocking=False):
        pass
    lease.add(IDS[1])
    (thread,) = renewing()
    for _ in range(8):
        assert store.beaten.acquire(timeout=PATIENCE_S)
    assert renewing() == [thread]
    with pytest.raises(Killed):
        dead.close()


def test_what_goes_wrong_with_one_root_ends_no_others_renewal(store, lease, at_once, caplog):
    class Odd(Refusing):
        def put(self, key, data):
            super().put(key, data)
            if self.puts > 1:
                raise LookupError("a store of somebody's own")

    odd = Lease(Odd(store.store))
    odd.add(IDS[0])
    lease.add(IDS[1])
    for _ in range(8):
        assert store.beaten.acquire(timeout=PATIENCE_S)
    assert "a lease was not renewed" in caplog.text
    assert "a store of somebody's own" in caplog.text
    odd.close()


def test_what_the_store_did_not_take_is_claimed_by_the_next_to_open(store, lease):
    store.error = Transient
    assert lease.add(IDS[0])
    store.error = None
    assert lease.add(IDS[0])
    assert lease_claims(store) == [((IDS[0],), 2)]
    assert not lease.add(IDS[0])


def test_further_version_that_the_store_did_not_take_is_claimed_by_the_next_to_open(store, lease):
    assert lease.add(IDS[0])
    store.error = Transient
    assert lease.add(IDS[1])
    assert not lease.add(IDS[0])  # the store has it
    store.error = None
    assert lease.add(IDS[1])
    assert lease_claims(store) == [((IDS[0], IDS[1]), 3)]
    assert not lease.add(IDS[1])
    assert store.puts == 3


def test_read_only_credentials_are_warned_once(store, caplog):
    store.error = Forbidden
    before = renewing()
    for _ in range(3):
        lease = Lease(store)
        lease.add(IDS[0])
        assert not lease.active
        assert not lease.beat()
        lease.close()
    assert store.puts == 3
    assert renewing() == before
    assert len(warnings(caplog)) == 1
    assert "without a lease" in warnings(caplog)[0]


def test_lease_that_cannot_be_removed_is_logged(store, lease, caplog):
    lease.add(IDS[0])
    store.error = Transient
    lease.close()
    assert "was not removed" in warnings(caplog)[0]


def test_leases_are_read_again_only_where_they_moved(store):
    held = [Lease(store) for _ in range(5)]
    for number, one in enumerate(held):
        one.add(IDS[number])
    leases = Leases(store)
    assert sorted(one.versions for one in leases.read()) == [(one,) for one in IDS[:5]]
    assert len(store.gets) == 5
    held[3].beat()
    given_back = held[4].key
    held[4].close()
    assert sorted((one.versions[0], one.beat) for one in leases.read()) == [
        *((one, 1) for one in IDS[:3]),
        (IDS[3], 2),
    ]
    assert store.gets[5:] == [held[3].key, given_back]  # that no listing has it says nothing
    leases.read()
    assert len(store.gets) == 7
    for one in held:
        one.close()


def test_lease_that_a_listing_lacks_is_read_at_its_last_key(store):
    held = Lease(store)
    held.add(IDS[0])
    known, fresh = Leases(store), Leases(store)
    assert [one.key for one in known.read()] == [held.key]
    held.beat()
    store.list = lambda *_: iter(())
    assert [(one.key, one.beat) for one in known.read()] == [(held.key, 2)]
    assert fresh.read() == []
    assert [one.key for one in fresh.read([held.key, "leases/gone.json"])] == [held.key]
    assert [one.key for one in fresh.read()] == [held.key]
    held.close()
    assert known.read() == fresh.read() == []


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"beat":1}', b'{"beat":"x","versions":[]}', b'{"beat":1,"versions":[1]}']
)
def test_what_is_no_lease_claims_nothing(data, caplog):
    found = parse_lease("leases/x.json", data, "e")
    assert (found.holder, found.versions, found.beat) == ("x", (), 0)
    assert "leases/x.json is not a lease" in warnings(caplog)[0]


def test_leases_of_an_earlier_release_are_read():
    found = parse_lease(f"leases/{IDS[0]}/host-7.json", b'{"beat":4,"holder":"host-7"}', "e")
    assert (found.holder, found.versions, found.beat) == ("host-7", (IDS[0],), 4)


def write(path):
    root = loader.Root(path)
    with root.write("d") as writer:
        for i in range(8):
            writer.add(f"k{i}", {"cls": i})
    return root


def test_forked_child_neither_renews_nor_gives_back_what_its_parent_holds(tmp_path):
    root = write(tmp_path)
    version = root.open("d")
    before = lease_claims(root.store)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            root.renew_leases()
            assert not renewing()
            root.open("d")  # a reader of its own
            assert sorted(lease_claims(root.store)) == sorted([*before, ((version.id,), 1)])
            root.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert lease_claims(root.store) == before
    root.close()
    assert lease_claims(root.store) == []


def leases_in_a_worker(plan, path):
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy") as batches:
        next(batches)
    assert len(list(loader.Root(path).store.list("leases/"))) == 1
    assert not renewing()


def test_worker_processes_hold_no_leases(tmp_path):
    """Whoever sent them the version does: a Loader's own, and those that somebody spawns."""
    root = write(tmp_path)
    plan = loader.plan({"d": root.open("d")}, seed=0, global_batch=2)
    with loader.Loader(plan, 0, 1, executor="processes", workers=1, framework="numpy") as batches:
        for _ in range(3):
            next(batches)
        assert len(list(list_leases(root.store))) == 1
    process = multiprocessing.get_context("spawn").Process(
        target=leases_in_a_worker, args=(plan, str(tmp_path))
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    root.close()


def test_lease_of_a_killed_reader_stays_and_moves_no_more(tmp_path):
    root = write(tmp_path)
    code = (
        "import sys, loader; from loader.dataset.log import leases as lease; lease.RENEW_EVERY_S = 0.001\n"
        "version = loader.Root(sys.argv[1]).open('d'); print('open', flush=True); sys.stdin.read()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with reader:
        assert reader.stdout.readline() == b"open\n"
        leases = Leases(root.store)
        (first,) = leases.read()
        while leases.read()[0].beat < first.beat + 3:
            pass
        reader.send_signal(signal.SIGKILL)
        reader.wait()
    (last,) = leases.read()
    assert json.loads(root.store.get(last.key).data)["host"] == last.host
    assert leases.read() == [last]


def test_dropped_root_is_renewed_as_long_as_its_version(store, tmp_path):
    root = write(tmp_path)
    version = root.open("d")
    del root
    gc.collect()
    assert renewing()
    version.reader.renew_leases()
    assert [beat for _, beat in lease_claims(version.store)] == [2]


def test_renewal_starts_its_thread_without_its_lock(monkeypatch):
    """A thread that begins may collect garbage: another lease, which is removed there and then."""
    own, renewed, removed = renewal.Renewal(), object(), []

    class Starting(AwaitedThread):
        def start(self):
            remover = AwaitedThread(own.remove, (object(),), name="remover")
            remover.start()
            remover.join(PATIENCE_S)
            removed.append(not remover.is_alive())
            super().start()

    monkeypatch.setattr(renewal, "AwaitedThread", Starting)
    own.add(renewed)
    monkeypatch.undo()
    own.remove(renewed)
    assert removed == [True]


def test_renewing_thread_collects_a_lease_as_its_wait_begins(store, at_once, monkeypatch):
    """In the middle of a wait of `threading`, which holds a lock there."""
    one, two, real, collected = Lease(store), Lease(store), threading.Condition.wait, threading.Event()
    one.add(IDS[0])

    def wait(condition, timeout=None):
        if threading.current_thread().name == THREAD and not collected.is_set():
            collected.set()
            renewal.close_in_finalizer(two)
        return real(condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait", wait)
    two.add(IDS[1])
    for _ in range(8):
        assert store.beaten.acquire(timeout=PATIENCE_S)
    renewal.close_in_finalizer(two)
    assert [versions for versions, _ in lease_claims(store)] == [(IDS[0],)]
    one.close()


def test_process_gives_its_leases_back_at_its_end(tmp_path):
    root = write(tmp_path)
    code = "import sys, loader; root = loader.Root(sys.argv[1]); version = root.open('d'); print(root._lease.active)"
    done = python("-W", "error", "-c", code, tmp_path, check=True)
    assert done.stdout == "True\n"
    assert list(root.store.list("leases/")) == []


def test_lease_keeps_the_named_versions_only(store, lease):
    for one in IDS[:4]:
        lease.add(one)
    before = store.puts
    lease.keep([IDS[1], IDS[2], IDS[9]])
    assert [versions for versions, _ in lease_claims(store)] == [(IDS[1], IDS[2])]
    lease.keep([IDS[1], IDS[2]])
    assert store.puts == before + 1  # nothing had changed
    assert lease.add(IDS[0])
    lease.keep([])
    assert lease_claims(store) == []
    assert lease.add(IDS[3])
    assert [versions for versions, _ in lease_claims(store)] == [(IDS[3],)]


def test_proposed_versions_are_one_request_and_become_claims(store, lease):
    assert lease.propose(IDS[:3])
    assert store.puts == 1
    assert lease_claims(store) == [(tuple(IDS[:3]), 1)]
    lease.confirm(IDS[:2])
    lease.withdraw(IDS[:3])
    assert lease_claims(store) == [(tuple(IDS[:2]), 2)]
    assert not lease.propose(IDS[:2])
    lease.withdraw(IDS[:2])
    assert store.puts == 2


def test_withdrawn_proposal_without_other_claims_removes_the_lease(store, lease):
    lease.propose(IDS[:2])
    lease.withdraw(IDS[:2])
    assert lease_claims(store) == []
    assert renewing() == []


def test_version_that_two_threads_propose_stays_for_the_second(store, lease):
    """Whatever the first one does; and who adds it meanwhile reads the log again."""
    assert lease.propose(IDS[:1])
    assert lease.propose(IDS[:1])
    assert store.puts == 1
    lease.withdraw(IDS[:1])
    assert lease_claims(store) == [((IDS[0],), 1)]
    assert lease.add(IDS[0])
    assert store.puts == 1
    lease.withdraw(IDS[:1])
    assert lease_claims(store) == [((IDS[0],), 1)]


def test_proposed_versions_are_not_released_by_who_keeps_others(store, lease):
    lease.add(IDS[0])
    lease.add(IDS[1])
    lease.propose(IDS[2:3])
    lease.keep(IDS[:1])
    assert lease_claims(store)[0][0] == (IDS[0], IDS[2])


def test_proposal_that_the_store_does_not_take_is_tried_again(store, lease):
    store.error = Transient
    assert lease.propose(IDS[:1])
    lease.confirm(IDS[:1])
    store.error = None
    assert lease.propose(IDS[:1])
    assert lease_claims(store) == [((IDS[0],), 2)]


def test_further_proposal_that_the_store_does_not_take_is_tried_again(store, lease):
    lease.add(IDS[0])
    store.error = Transient
    assert lease.propose(IDS[1:3])
    lease.confirm(IDS[1:3])
    store.error = None
    assert lease.propose(IDS[1:3])
    assert lease_claims(store) == [(tuple(IDS[:3]), 3)]
    assert not lease.propose(IDS[:3])
