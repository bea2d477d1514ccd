"""The real append under faults: at every verb, before it and after it, and with others in the way."""

import hashlib
from uuid import uuid4

import pytest

from loader.dataset.log.append import TRIES, read_tail
from loader.dataset.log.entries import canonical, entry_key
from loader.dataset.log.log import Log
from loader.dataset.log.rules import CommitBody
from loader.errors import AlreadyExists, Conflict, Corrupt, Forbidden, ForkedStore, Transient
from loader.storage import open_store
from tests.refusals import refusal


class Faulty:
    """A store whose k-th put_if_absent or get (from 0) goes wrong as `faults[verb, k]` says: a callable that
    is given the verb's own call."""

    def __init__(self, store, faults):
        self.store, self.url, self.faults = store, store.url, faults
        self.calls = {"get": 0, "put_if_absent": 0}

    def _ask(self, verb, *args):
        k = self.calls[verb]
        self.calls[verb] += 1
        fault = self.faults.get((verb, k)) or self.faults.get(verb)
        call = lambda: getattr(self.store, verb)(*args)  # noqa: E731
        return fault(call) if fault else call()

    def get(self, key):
        return self._ask("get", key)

    def put_if_absent(self, key, data):
        return self._ask("put_if_absent", key, data)

    def put(self, key, data):
        self.store.put(key, data)

    def list(self, prefix="", start_after=None):
        return self.store.list(prefix, start_after)


def fail_before_call(call):
    raise Transient("no answer, nothing done")


def fail_after_call(call):
    call()
    raise Transient("done, no answer")


def conflict_after_call(call):
    call()
    raise AlreadyExists("done, and then tried again by the client")


def conflict_before_call(call):
    raise AlreadyExists("409: nothing done")


def build(state):
    newest = state.newest("photos")
    parent = newest.id if newest else None
    sha256 = hashlib.sha256(canonical([parent, state.last_deny])).hexdigest()
    return CommitBody(
        id=f"v-{sha256}", manifest="m.json", sha256=sha256, parent=parent, denies=state.last_deny
    )


def publish(log):
    return log.commit(log.begin("photos").txn, build)


def kinds(store):
    return [e.kind for e in read_tail(store, 0)]


@pytest.mark.parametrize(
    "fault", [fail_before_call, fail_after_call, conflict_after_call, conflict_before_call]
)
@pytest.mark.parametrize("k", [0, 1, 2])
def test_write_with_a_wrong_answer_happens_once(store, fault, k):
    log = Log(Faulty(store, {("put_if_absent", k): fault, ("put_if_absent", k + 1): fault}))
    log.append(lambda state: {"kind": "begin", "txn": "x", "dataset": "x", "parent": None})
    version = publish(log)
    assert (version.number, kinds(store)) == (1, ["begin", "begin", "commit"])
    assert log.state == Log(store).verify()


@pytest.mark.parametrize(
    "fault", [fail_before_call, fail_after_call, conflict_after_call, conflict_before_call]
)
@pytest.mark.parametrize("k", [0, 1])
def test_write_with_a_wrong_answer_and_another_writer(store, fault, k):
    def others_first(call):
        publish(Log(store))
        return fault(call)

    log = Log(Faulty(store, {("put_if_absent", k): others_first}))
    mine = publish(log)
    assert mine.number == 2
    assert sorted(kinds(store)) == ["begin"] * 2 + ["commit"] * 2
    assert log.state == Log(store).verify()


def test_delayed_write_that_lands_before_the_next_try_is_our_own(store):
    delayed = []

    def later(call):
        delayed.append(call)
        raise Transient("timed out, still on its way")

    def land_delayed(call):
        delayed.pop()()
        return call()

    log = Log(Faulty(store, {("put_if_absent", 0): later, ("put_if_absent", 1): land_delayed}))
    outcome = log.append(lambda state: {"kind": "begin", "txn": "x", "dataset": "x", "parent": None})
    assert outcome.entry.n == 1
    assert kinds(store) == ["begin"]


def test_reads_that_fail_after_a_write_are_tried_again(store):
    faults = {("put_if_absent", 0): fail_after_call} | {("get", k): fail_before_call for k in range(1, TRIES)}
    log = Log(Faulty(store, faults))
    log.append(lambda state: {"kind": "begin", "txn": "x", "dataset": "x", "parent": None})
    assert kinds(store) == ["begin"]


def test_store_that_is_gone_after_a_write_says_that_nothing_is_known(store):
    faults = {("put_if_absent", 0): fail_after_call} | {("get", k): fail_before_call for k in range(1, 99)}
    log = Log(Faulty(store, faults))
    with pytest.raises(Transient) as caught:
        log.begin("photos", txn="t1")
    assert f"not known whether log entry {entry_key(1)} (begin) was written" in caught.value.__notes__[0]
    assert Log(store).begin("photos", txn="t1").n == 1


@pytest.mark.parametrize("fault", [fail_before_call, conflict_before_call])
def test_store_that_takes_no_writes_ends_the_append(store, fault):
    faulty = Faulty(store, {"put_if_absent": fault})
    with pytest.raises(Transient):
        Log(faulty).begin("photos")
    assert faulty.calls["put_if_absent"] == TRIES
    assert kinds(store) == []


@pytest.mark.parametrize("error", [Forbidden, ForkedStore])
def test_what_no_retry_mends_is_raised_at_once(store, error):
    def refuse(call):
        raise error("no")

    faulty = Faulty(store, {"put_if_absent": refuse})
    with pytest.raises(error):
        Log(faulty).begin("photos")
    assert faulty.calls["put_if_absent"] == 1


def test_loser_of_a_race_decides_again(store):
    publish(Log(store))
    publish(Log(store))

    def others_first(call):
        Log(store).ref("photos", "prod", "alias", 1)
        return call()

    log = Log(Faulty(store, {("put_if_absent", 0): others_first}))
    with refusal(Conflict, what="expected_number", where="photos@prod", accepted=1):
        log.ref("photos", "prod", "alias", 2)
    assert kinds(store).count("ref") == 1


def test_alias_moved_back_meanwhile_is_not_moved_twice(store):
    """The answer is lost, then somebody moves the alias back: moving it again would undo him."""
    for _ in range(2):
        publish(Log(store))
    Log(store).ref("photos", "prod", "alias", 1)

    def apply_then_undo(call):
        call()
        Log(store).ref("photos", "prod", "alias", 1, was=2)
        raise Transient("done, no answer")

    log = Log(Faulty(store, {("put_if_absent", 0): apply_then_undo}))
    assert log.ref("photos", "prod", "alias", 2, was=1).number == 2
    assert log.state.refs["photos", "prod"].number == 1


def test_errors_behind_the_end_of_the_log_do_not_matter(store):
    # probes: entry 1; 2, 3; then 4, 5, 6, 7 of which 5 is not there and 6 does not answer
    seen = []

    class Sick(Faulty):
        def get(self, key):
            seen.append(key)
            if key == entry_key(6):
                raise Transient("no answer")
            return super().get(key)

    log = Log(Sick(store, {}))
    assert log.state.n == 0
    for _ in range(2):
        publish(Log(store))
    assert log.state.n == 4
    assert entry_key(6) in seen


def test_error_inside_the_log_is_raised(store):
    for _ in range(2):
        publish(Log(store))
    with pytest.raises(Transient):
        Log(Faulty(store, {("get", 1): fail_before_call})).refresh()


def test_entry_created_while_others_are_read_is_no_gap(store):
    """The probe of n finds nothing, then n and n+1 are written, then the probe of n+1 finds one."""
    publish(Log(store))

    class Behind(Faulty):
        missed = False

        def get(self, key):
            if key == entry_key(2) and not self.missed:
                self.missed = True
                return super().get(entry_key(999))
            return super().get(key)

    publish(Log(store))
    assert Log(Behind(store, {})).state.n == 4


@pytest.fixture(params=["memory", "disk"])
def any_store(request, tmp_path):
    return open_store(str(tmp_path) if request.param == "disk" else f"memory://append-{uuid4().hex}")


def truncated_log(store, gone):
    """A reader of 10 entries who had read up to those that are gone since."""
    early, log = Log(store), Log(store)
    for n in range(10):
        if n == gone[0] - 1:
            early.refresh()
        log.begin("photos", txn=f"t{n}")
    store.delete_many(map(entry_key, gone))
    return early


@pytest.mark.parametrize("gone", [[1], [3], [7], [8], [6, 7]])
def test_nothing_is_appended_in_the_place_of_a_missing_entry(any_store, gone):
    """Of 10 entries: neither by who opens the log then, nor by who had read it up to there. A read ends at 1, 3 or 7
    though there are later ones; the others lie within what is asked for at once."""
    early = truncated_log(any_store, gone)
    left = [info.key for info in any_store.list("log/")]
    for log in (early, Log(any_store)):
        with refusal(Corrupt, what="entry", where=f"log entry {entry_key(gone[0])}", given="missing"):
            log.begin("photos", txn="new")
    with refusal(Corrupt, what="entry", where=f"log entry {entry_key(gone[0])}", given="missing"):
        Log(any_store).refresh()
    with refusal(Corrupt, what="entry", where=f"log entry {entry_key(gone[0])}", given="missing"):
        Log(any_store).verify()
    assert [info.key for info in any_store.list("log/")] == left


def test_place_of_a_missing_entry_is_listed_before_it_is_taken(store):
    """By who had read up to it, and asks only for the next."""
    early = truncated_log(store, [7])
    with refusal(Corrupt, what="entry", where=f"log entry {entry_key(7)}", given="missing"):
        early.begin("photos", txn="new")


def test_restored_log_accepts_entries(store):
    publish(Log(store))
    early = Log(store)
    early.refresh()
    publish(Log(store))
    lost = store.get(entry_key(3)).data
    store.delete_many([entry_key(3)])
    with pytest.raises(Corrupt):
        early.begin("photos")
    store.put(entry_key(3), lost)
    assert early.begin("photos").n == 5


def test_entries_of_others_behind_ours_are_no_gap(store):
    """They come between the read and the listing, which may show the second of two and not the first."""
    log = Log(store)
    log.begin("photos", txn="t0")

    class Late(Faulty):
        def list(self, prefix="", start_after=None):
            for name in ("a", "b"):
                Log(self.store).begin("photos", txn=name)
            return (i for i in self.store.list(prefix, start_after) if i.key != entry_key(2))

    behind = Log(Late(store, {}))
    behind._known = log.known
    assert behind.begin("photos", txn="mine").n == 4


def test_writer_without_list_permission_appends(store, caplog):
    class Unlisted(Faulty):
        def list(self, prefix="", start_after=None):
            raise Forbidden("no")

    log = Log(Unlisted(store, {}))
    assert [log.begin("photos").n for _ in range(2)] == [1, 2]
    assert "a missing entry may look like its end" in caplog.text
