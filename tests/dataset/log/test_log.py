"""The log on a store: verbs, rules, chain, and what reading and appending cost."""

import hashlib
import json
import threading
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.dataset.log.append import read_tail
from loader.dataset.log.denies import Target
from loader.dataset.log.entries import Entry, canonical, checksum_of, edited, entry_key, parse, seal
from loader.dataset.log.fold import fold, fold_all
from loader.dataset.log.log import Log
from loader.dataset.log.rules import CommitBody, Done
from loader.dataset.log.snapshots import dump_state, load_state
from loader.dataset.log.state import State
from loader.errors import (
    Conflict,
    Corrupt,
    Fenced,
    FormatTooNew,
    InvalidName,
    TransactionNotFound,
    VersionNotFound,
    VersionRetired,
)
from loader.storage import open_store


@pytest.fixture
def store():
    return open_store(f"memory://log-{uuid4().hex}/root")


def builder(txn, calls=None, verdict=""):
    def build(state):
        newest = state.newest(state.txns[txn].dataset)
        parent = newest.id if newest else None
        sha256 = hashlib.sha256(canonical([txn, parent, state.last_deny])).hexdigest()
        if calls is not None:
            calls.append((parent, state.last_deny))
        return CommitBody(
            id=f"v-{sha256}",
            manifest="m.json",
            sha256=sha256,
            parent=parent,
            denies=state.last_deny,
            verdict=verdict,
        )

    return build


def publish(log, dataset="photos", gated=False):
    txn = log.begin(dataset, gated=gated).txn
    return log.commit(txn, builder(txn, verdict="stages/x" if gated else ""))


def deny(state):
    return {"kind": "deny", "hashes": ["aa"], "scope": "sample"}


def all_entries(store):
    return list(read_tail(store, 0))


# --- the verbs


def test_versions_are_numbered_from_one_and_chained_to_their_parent(store):
    log = Log(store)
    versions = [publish(log) for _ in range(3)]
    assert [v.number for v in versions] == [1, 2, 3]
    assert [v.parent for v in versions] == [None, versions[0].id, versions[1].id]
    assert publish(log, "other").number == 1
    assert Log(store).state == log.state
    assert log.verify() == log.state


def test_an_entry_is_canonical_json_with_the_hash_of_the_one_before(store):
    publish(Log(store))
    first, second = store.get("log/000000000001.json").data, store.get("log/000000000002.json").data
    assert json.loads(first)["prev"] == ""
    assert json.loads(second)["prev"] == hashlib.sha256(first).hexdigest()
    assert first == canonical(json.loads(first))


def test_a_transaction_is_begun_and_committed_once(store):
    log, calls = Log(store), []
    first = log.begin("photos", txn="step7")
    assert log.begin("photos", txn="step7") == first
    version = log.commit("step7", builder("step7", calls))
    assert Log(store).commit("step7", builder("step7", calls)) == version
    assert len(calls) == 1
    assert log.begin("photos", txn="step7").status == "committed"
    with pytest.raises(Conflict, match="begun for photos"):
        log.begin("other", txn="step7")
    assert log.state.n == 2


@pytest.mark.parametrize(
    "name", ["../x", "a/b", ".", "-a", "größe 7", " ", "t\n", "t" * 201, "\udcff", 5, b"t"]
)
def test_a_transaction_that_could_have_no_keys_is_not_begun(store, name):
    with pytest.raises(InvalidName, match="cannot be a transaction's name: accepted are 1 to 200 of"):
        Log(store).begin("photos", txn=name)
    assert all_entries(store) == []


@pytest.mark.parametrize("name", ["../x", "größe 7", "t" * 300])
def test_what_an_earlier_release_began_is_read(store, name):
    begun = Log(store).append(lambda _: {"kind": "begin", "txn": name, "dataset": "photos", "parent": None})
    assert Log(store).begin("photos", txn=name) == begun.state.txns[name]
    assert Log(store).abort(name, "no sign of life").status == "aborted"


@pytest.mark.parametrize("words", ["\udcff", 5, None, b"x"])
def test_words_that_are_no_text_are_refused(store, words):
    log = Log(store)
    publish(log)
    txn, n = log.begin("photos").txn, log.state.n
    target = [Target(kind="sample", value="k", dataset="photos")]
    for verb in (
        lambda: log.retire("photos", 1, words),
        lambda: log.abort(txn, words),
        lambda: log.hold("photos", 1, words or 7, "an audit"),
        lambda: log.hold("photos", 1, "desk", words or 7),
        lambda: log.deny(target, words or 7, "desk"),
        lambda: log.deny(target, "ticket 1", words or 7),
    ):
        with pytest.raises(InvalidName, match="the log takes UTF-8 text"):
            verb()
    assert log.state.n == n


def test_an_aborted_transaction_is_fenced(store):
    log = Log(store)
    txn = log.begin("photos").txn
    assert log.abort(txn, "no heartbeat").status == "aborted"
    assert log.abort(txn, "again").reason == "no heartbeat"
    with pytest.raises(Fenced, match=r"no heartbeat.*begin a new one"):
        log.commit(txn, builder(txn))
    with pytest.raises(Fenced):
        log.begin("photos", txn=txn)
    txn = log.begin("photos").txn
    log.commit(txn, builder(txn))
    with pytest.raises(Conflict, match="photos@1"):
        log.abort(txn, "too late")


def test_an_unknown_transaction_is_named(store):
    for verb in (lambda log: log.commit("nope", builder("nope")), lambda log: log.abort("nope", "x")):
        with pytest.raises(TransactionNotFound, match="'nope'"):
            verb(Log(store))


def test_a_commit_is_rebased_on_the_newest_version_and_on_new_takedowns(store):
    log, calls = Log(store), []
    one = publish(log)
    txn = log.begin("photos").txn
    two = publish(log)
    build = builder(txn, calls)
    other = Log(store)

    def build_while_others_write(state):
        body = build(state)
        if len(calls) == 1:
            publish(other)
        if len(calls) == 2:
            other.append(deny)
        return body

    version = log.commit(txn, build_while_others_write)
    newest = log.state.version("photos", 3)
    assert calls == [(two.id, 0), (newest.id, 0), (newest.id, log.state.last_deny)]
    assert (version.number, version.parent, version.denies) == (4, newest.id, log.state.denies[0].n)
    assert log.state.txns[txn].parent == one.id


def test_a_manifest_built_on_something_else_is_refused(store):
    log = Log(store)
    publish(log)
    txn = log.begin("photos").txn
    stale = builder(txn)(replace(log.state, datasets={}))
    with pytest.raises(Conflict, match="not built on the state given"):
        log.commit(txn, lambda state: stale)


def test_two_versions_cannot_share_an_id(store):
    log = Log(store)
    one = publish(log)
    txn = log.begin("photos").txn
    with pytest.raises(Conflict, match="photos@1"):
        log.commit(txn, lambda s: replace(builder(txn)(s), id=one.id, sha256=one.sha256))


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"id": "v-" + "0" * 64}, {"id": "0" * 64}])
def test_a_version_has_the_id_of_its_manifest(store, change):
    """Who writes such a commit is refused; so is, by every reader, an entry that another tool wrote."""
    log = Log(store)
    txn = log.begin("photos").txn
    good = builder(txn)(log.state)
    with pytest.raises(InvalidName, match="the same 64 hex"):
        replace(good, **change)
    body = {"kind": "commit", "txn": txn, "dataset": "photos", "number": 1, "parent": None, "denies": 0}
    body |= {"id": good.id, "sha256": good.sha256, "manifest": good.manifest}
    assert fold(log.state, after(log.state, **body)).version("photos", 1).id == good.id
    store.put(entry_key(2), after(log.state, **(body | change)).data)
    with pytest.raises(Corrupt, match="is not that of a manifest with sha256"):
        Log(store).refresh()


def test_a_retired_version_is_no_parent_and_no_latest(store):
    log = Log(store)
    one, two = publish(log), publish(log)
    txn = log.begin("photos").txn
    assert log.retire("photos", 2, "bad labels").retired == "bad labels"
    assert log.retire("photos", 2, "again").retired == "bad labels"
    with pytest.raises(VersionRetired, match="bad labels"):
        log.begin("photos", parent=two.id)
    with pytest.raises(VersionNotFound, match=r"versions 1\.\.2"):
        log.begin("photos", parent="v-unknown")
    with pytest.raises(VersionNotFound, match=r"photos@9.*versions 1\.\.2 \(retired 2\)"):
        log.retire("photos", 9, "x")
    three = log.commit(txn, builder(txn))
    assert (three.number, three.parent) == (3, one.id)
    assert log.begin("photos", parent=None).parent is None


def test_refs(store):
    log = Log(store)
    for _ in range(3):
        publish(log)
    assert log.ref("photos", "2026.11.20", "tag", 1).number == 1
    assert log.ref("photos", "2026.11.20", "tag", 1).number == 1
    log.ref("photos", "prod", "alias", 1)
    assert log.ref("photos", "prod", "alias", 2, was=1).number == 2
    n = log.state.n
    with pytest.raises(Conflict, match="tag of version 1"):
        log.ref("photos", "2026.11.20", "tag", 2)
    with pytest.raises(Conflict, match="tag of version 1"):
        log.ref("photos", "2026.11.20", "alias", 2, was=1)
    with pytest.raises(Conflict, match="keeps its kind"):
        log.ref("photos", "prod", "tag", 3)
    with pytest.raises(Conflict, match="names version 2, not version 1"):
        log.ref("photos", "prod", "alias", 3, was=1)
    with pytest.raises(Conflict, match="does not exist, not version 1"):
        log.ref("photos", "new", "alias", 3, was=1)
    with pytest.raises(InvalidName, match="'branch'"):
        log.ref("photos", "new", "branch", 3)
    log.retire("photos", 3, "bad")
    with pytest.raises(VersionRetired):
        log.ref("photos", "new", "tag", 3)
    assert log.state.n == n + 1


# --- what a reader refuses


def test_append_writes_nothing_that_readers_would_refuse(store):
    log = Log(store)
    for body in (
        {"kind": "commit", "txn": "t"},
        {"kind": "deny", "hashes": [], "scope": "sample"},
        {"kind": "hold", "n": 5},
    ):
        with pytest.raises(Corrupt):
            log.append(lambda state, body=body: body)
    with pytest.raises(FormatTooNew):
        log.append(lambda state: {"kind": "compress"})
    with pytest.raises(TypeError, match="no floats"):
        log.append(lambda state: {"kind": "hold", "until": 0.5})
    assert all_entries(store) == []


def test_done_appends_nothing(store):
    outcome = Log(store).append(lambda state: Done(state.n))
    assert (outcome.entry, outcome.value) == (None, 0)
    assert all_entries(store) == []


def history(store):
    """begin t1, commit v1, begin t2, deny, begin t3, abort t3, tag; then entries are laid after it."""
    log = Log(store)
    log.begin("photos", txn="t1")
    log.commit("t1", builder("t1"))
    log.begin("photos", txn="t2")
    log.append(deny)
    log.begin("photos", txn="t3")
    log.abort("t3", "dead")
    log.ref("photos", "one", "tag", 1)
    return log.state


def test_a_mirror_is_said_once_for_what_was_written(store):
    log = Log(store)
    history(store)
    assert log.mirror("az://b/p", 7) == 8
    assert log.mirror("az://b/p", 8) == 8  # nothing but mirrors since
    assert log.mirror("gs://b/p", 8) == 9
    log.ref("photos", "two", "tag", 1)
    assert log.mirror("az://b/p", 10) == 11
    assert [(one["url"], one["upto"], one["n"]) for one in log.state.mirrors] == [
        ("az://b/p", 7, 8),
        ("gs://b/p", 8, 9),
        ("az://b/p", 10, 11),
    ]


def after(state, **body):
    return seal(state.n + 1, state.prev, "ff", 0, body)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"kind": "begin", "txn": "t1", "dataset": "photos", "parent": None}, "t1 was begun before"),
        ({"kind": "begin", "txn": "t9", "dataset": "photos", "parent": "v-1"}, "no version of photos"),
        ({"kind": "begin", "txn": "t9", "dataset": 7, "parent": None}, "dataset 7, expected text"),
        ({"kind": "abort", "txn": "t1", "reason": "x"}, "t1 is committed, not open"),
        ({"kind": "abort", "txn": "t9", "reason": "x"}, "t9 is never begun"),
        ({"kind": "retire", "dataset": "photos", "number": 1, "id": "v-1", "reason": "x"}, "with that id"),
        ({"kind": "retire", "dataset": "photos", "number": 2, "id": "v-1", "reason": "x"}, "no version 2"),
        (
            {"kind": "retire", "dataset": "photos", "number": True, "id": "v", "reason": "x"},
            "expected an int",
        ),
        (
            {"kind": "ref", "dataset": "photos", "name": "a", "ref_kind": "tag", "number": 2, "was": None},
            "no live version 2",
        ),
        (
            {"kind": "ref", "dataset": "photos", "name": "a", "ref_kind": "tog", "number": 1, "was": None},
            "'tog'",
        ),
        (
            {"kind": "ref", "dataset": "photos", "name": "a", "ref_kind": "tag", "number": 1, "was": 4},
            "named None, not 4",
        ),
        (
            {"kind": "ref", "dataset": "photos", "name": "one", "ref_kind": "tag", "number": 1, "was": 1},
            "cannot become",
        ),
        ({"kind": "deny", "hashes": "aa", "scope": "sample"}, "not a list of text"),
        ({"kind": "mirror", "url": None, "upto": 7}, "url None, expected text"),
        ({"kind": "mirror", "url": "az://b/p", "upto": 8}, "which comes later"),
        ({"kind": "commit", "txn": "t2", "dataset": "photos"}, "number None, expected an integer"),
    ],
)
def test_fold_refuses(store, body, says):
    state = history(store)
    with pytest.raises(Corrupt, match=says) as caught:
        fold(state, after(state, **body))
    assert "log/000000000008.json" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"txn": "t1"}, "t1 is committed, not open"),
        ({"txn": "t3"}, "t3 is aborted, not open"),
        ({"txn": "t9"}, "t9 was never begun"),
        ({"dataset": "other"}, "belongs to photos"),
        ({"number": 3}, "number 3, expected 2"),
        ({"parent": None}, "parent None, but the newest"),
        ({"denies": 0}, "takedowns up to entry 0, expected 4"),
        ({"id": None}, "id None, expected text"),
    ],
)
def test_fold_refuses_a_commit(store, change, says):
    state = history(store)
    one = state.version("photos", 1)
    good = {"kind": "commit", "txn": "t2", "dataset": "photos", "number": 2, "manifest": "m"}
    good |= {"id": f"v-{'0' * 64}", "sha256": "0" * 64, "parent": one.id, "denies": 4}
    assert fold(state, after(state, **good)).version("photos", 2).id == good["id"]
    with pytest.raises(Corrupt, match=says):
        fold(state, after(state, **(good | change)))
    with pytest.raises(Corrupt, match="photos@1"):
        fold(state, after(state, **(good | {"id": one.id, "sha256": one.sha256})))


def test_fold_leaves_the_state_it_was_given_alone(store):
    state = history(store)
    before = dump_state(state)
    log = Log(store)
    publish(log)
    log.retire("photos", 1, "old")
    assert dump_state(state) == before
    assert log.state.version("photos", 1).retired == "old"


def test_unknown_fields_of_a_known_kind_are_ignored_and_new_formats_refused(store):
    state = history(store)
    body = {"kind": "begin", "txn": "t9", "dataset": "photos", "parent": None, "note": "later"}
    assert fold(state, after(state, **body)).txns["t9"].status == "open"
    text = json.loads(after(state, **body).data)
    for change in ({"format": 2}, {"kind": "compact"}):
        with pytest.raises(FormatTooNew, match="upgrade"):
            parse(8, canonical(text | change))
    for change in ({"format": 0}, {"format": "1"}, {"kind": 1}, {"nonce": ""}, {"at_us": None}, {"n": 7}):
        with pytest.raises(Corrupt, match=r"log/000000000008\.json"):
            parse(8, canonical(text | change))
    for data in (b"", b"[]", b"{", b"\xff", json.dumps(text).encode(), canonical(text) + b"\n"):
        with pytest.raises(Corrupt, match=r"log/000000000008\.json"):
            parse(8, data)


# --- edits by hand


def rewritten(entry, **change):
    """The entry edited by somebody who knows the format: its checksum is right."""
    value = json.loads(entry.data) | change
    return canonical(value | {"checksum": checksum_of(value)})


@pytest.mark.parametrize("k", range(1, 7))
@pytest.mark.parametrize("change", [{"at_us": 1}, {"nonce": "ee"}, {"at_us": 1, "prev": "0" * 64}])
def test_an_edited_entry_is_named_exactly(store, k, change):
    history(store)
    store.put(entry_key(k), rewritten(all_entries(store)[k - 1], **change))
    with pytest.raises(Corrupt):
        Log(store).refresh()
    with pytest.raises(Corrupt) as caught:
        Log(store).verify()
    assert f"chain of hashes: {entry_key(k)}" in caught.value.__notes__[0]


def test_an_edited_entry_is_told_with_the_root_and_what_to_do(store):
    """Whoever opens the root meets it: a commit by another number, an entry that is no JSON, one that is gone."""
    history(store)
    entries = all_entries(store)
    commit = next(one for one in entries if one.kind == "commit")
    to_do = (
        f"; run penstock verify --root {store.url}, which names what was edited or is missing; restore that"
    )
    damages = [
        (commit, rewritten(commit, number=7), "breaks a rule of the log: number 7, expected 1"),
        (entries[2], b"{", "is not JSON"),
        (entries[3], rewritten(entries[3], at_us=1), "one of the two was edited"),
        (entries[3], None, "is missing"),
    ]
    for entry, damaged, says in damages:
        one_open = Log(store)
        one_open._known = fold_all(State(), entries[: entry.n - 1])  # read when all was well
        if damaged is None:
            store.delete_many([entry_key(entry.n)])
        else:
            store.put(entry_key(entry.n), damaged)
        # (a reader that knows the entries before one that is gone takes its place for the end of the log)
        for log in (Log(store), one_open) if damaged else (Log(store),):
            with pytest.raises(Corrupt, match=says) as caught:
                log.refresh()
            assert str(caught.value).startswith(f"{store.url}: log entry log/0000000000")
            assert to_do in str(caught.value)
        store.put(entry_key(entry.n), entry.data)
    assert Log(store).refresh().n == len(entries)


def test_several_edits_are_told_apart(store):
    history(store)
    entries = all_entries(store)
    for k in (2, 5):
        entries[k - 1] = parse(k, rewritten(entries[k - 1], at_us=1))
    assert edited(entries) == [2, 5]
    assert edited(all_entries(store)) == []


def test_an_edit_with_an_editor_is_noticed_in_the_last_entry_too(store):
    state = history(store)
    pretty = json.dumps(json.loads(store.get(entry_key(state.n)).data), indent=2).encode()
    store.put(entry_key(state.n), pretty)
    with pytest.raises(Corrupt, match=rf"{entry_key(7)} is not canonical"):
        Log(store).verify()


@pytest.mark.parametrize("k", [2, 3, 5, 6])
def test_a_deleted_entry_is_missed(store, k):
    history(store)
    store.delete_many([entry_key(k)])
    with pytest.raises(Corrupt, match=f"{entry_key(k)} is missing"):
        Log(store).refresh()


# --- holds


def test_a_hold_is_placed_once_and_released(store):
    log = Log(store)
    publish(log)
    publish(log)
    log.hold("photos", 1, "alice", "audit 2026")
    n = log.state.n
    log.hold("photos", 1, "alice", "another reason")
    assert log.state.n == n
    log.hold("photos", 1, "bob", "appeal")
    assert [(one.by, one.why, one.n) for one in log.state.holds_of("photos", 1)] == [
        ("alice", "audit 2026", n),
        ("bob", "appeal", n + 1),
    ]
    assert log.state.holds_of("photos", 2) == ()
    assert not log.release("photos", 1, "carol")
    assert log.release("photos", 1, "alice")
    assert not log.release("photos", 1, "alice")
    assert [one.by for one in log.state.holds] == ["bob"]
    assert Log(store).verify() == log.state == Log(store).state


def test_what_is_retired_is_not_held_any_more_but_may_be_released(store):
    log = Log(store)
    publish(log)
    log.hold("photos", 1, "alice", "audit")
    log.retire("photos", 1, "bad")
    assert [one.by for one in log.state.holds_of("photos", 1)] == ["alice"]
    with pytest.raises(VersionRetired, match="bad"):
        log.hold("photos", 1, "bob", "audit")
    assert log.release("photos", 1, "alice")
    with pytest.raises(VersionNotFound):
        log.hold("photos", 2, "bob", "audit")
    with pytest.raises(VersionNotFound):
        log.release("photos", 2, "bob")
    for by, why in (("", "audit"), ("bob", "")):
        with pytest.raises(InvalidName, match="both are needed"):
            log.hold("photos", 1, by, why)


def test_readers_refuse_holds_that_break_a_rule(store):
    log = Log(store)
    known = publish(log)
    named = {"kind": "hold", "dataset": "photos", "number": 1, "id": known.id, "by": "alice"}
    for body, why in (
        ({**named, "action": "place", "number": 2, "why": "x"}, "no version 2 with that id"),
        ({**named, "action": "place", "id": "v-1", "why": "x"}, "no version 1 with that id"),
        ({**named, "action": "place"}, "why None, expected text"),
        ({**named, "action": "release"}, "'alice' does not hold photos@1"),
        ({**named, "action": "keep", "why": "x"}, "action 'keep', expected 'place' or 'release'"),
    ):
        with pytest.raises(Corrupt, match=why):
            log.append(lambda state, body=body: body)
    log.retire("photos", 1, "bad")
    with pytest.raises(Corrupt, match="photos@1 was retired"):
        log.append(lambda state: {**named, "action": "place", "why": "x"})


# --- folding is one function of the entries

VERBS = {"publish", "begin", "gated", "abort", "retire", "tag", "deny", "hold", "release"}


@settings(max_examples=25, derandomize=True, deadline=None)
@given(data=st.data())
def test_any_cut_of_any_history_folds_to_the_same_state(data):
    store = open_store(f"memory://log-{uuid4().hex}")
    log, datasets = Log(store), ("a", "b")
    for _ in range(data.draw(st.integers(0, 12))):
        dataset = data.draw(st.sampled_from(datasets))
        verb = data.draw(st.sampled_from(sorted(VERBS)))
        newest = log.state.newest(dataset)
        if verb == "publish":
            publish(log, dataset)
        elif verb == "begin":
            log.begin(dataset)
        elif verb == "gated":
            publish(log, dataset, gated=True)
        elif verb == "abort":
            log.abort(log.begin(dataset).txn, "ü")
        elif verb == "retire" and newest:
            log.retire(dataset, newest.number, "old")
        elif verb == "tag" and newest:
            log.ref(dataset, f"t{log.state.n}", "tag", newest.number)
        elif verb == "deny":
            log.append(deny)
        elif verb == "hold" and newest:
            log.hold(dataset, newest.number, data.draw(st.sampled_from("ab")), "ü")
        elif verb == "release" and newest:
            log.release(dataset, newest.number, "a")
    entries = all_entries(store)
    cut = data.draw(st.integers(0, len(entries)))
    half = fold_all(State(), entries[:cut])
    assert load_state(dump_state(half)) == half
    assert fold_all(load_state(dump_state(half)), entries[cut:]) == log.state == log.verify()


def test_threads_share_a_log(store):
    log, numbers = Log(store), []

    def work():
        numbers.extend(publish(log).number for _ in range(4))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 25))
    assert log.verify() == log.state


def test_an_entry_is_a_value():
    entry = seal(1, "", "aa", 5, {"kind": "hold"})
    assert isinstance(entry, Entry)
    assert parse(1, entry.data) == entry
