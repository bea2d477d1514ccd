"""The log on a store: verbs, rules and the chain of its entries."""

import hashlib
import json
import threading
from dataclasses import replace

import pytest

from loader.dataset.log.denies import Target
from loader.dataset.log.entries import canonical, entry_key
from loader.dataset.log.fold import fold
from loader.dataset.log.log import Log
from loader.errors import (
    Conflict,
    Corrupt,
    Fenced,
    InvalidName,
    TransactionNotFound,
    VersionNotFound,
    VersionRetired,
)
from tests.dataset.log.histories import all_entries, builder, deny, history, next_entry, publish
from tests.refusals import refusal


def test_versions_are_numbered_from_one_and_chained_to_their_parent(store):
    log = Log(store)
    versions = [publish(log) for _ in range(3)]
    assert [v.number for v in versions] == [1, 2, 3]
    assert [v.parent for v in versions] == [None, versions[0].id, versions[1].id]
    assert publish(log, "other").number == 1
    assert Log(store).state == log.state
    assert log.verify() == log.state


def test_entry_is_canonical_json_with_the_hash_of_its_predecessor(store):
    publish(Log(store))
    first, second = store.get("log/000000000001.json").data, store.get("log/000000000002.json").data
    assert json.loads(first)["prev"] == ""
    assert json.loads(second)["prev"] == hashlib.sha256(first).hexdigest()
    assert first == canonical(json.loads(first))


def test_transaction_is_begun_and_committed_once(store):
    log, calls = Log(store), []
    first = log.begin("photos", txn="step7")
    assert log.begin("photos", txn="step7") == first
    version = log.commit("step7", builder("step7", calls))
    assert Log(store).commit("step7", builder("step7", calls)) == version
    assert len(calls) == 1
    assert log.begin("photos", txn="step7").status == "committed"
    with refusal(Conflict, what="dataset", where="transaction step7", given="other", accepted="photos"):
        log.begin("other", txn="step7")
    assert log.state.n == 2


@pytest.mark.parametrize(
    "name", ["../x", "a/b", ".", "-a", "größe 7", " ", "t\n", "t" * 201, "\udcff", 5, b"t"]
)
def test_transaction_that_could_have_no_keys_is_not_begun(store, name):
    with refusal(InvalidName, what="transaction", given=name):
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
    for verb, what, given in (
        (lambda: log.retire("photos", 1, words), "reason", words),
        (lambda: log.abort(txn, words), "reason", words),
        (lambda: log.hold("photos", 1, words or 7, "an audit"), "holder's name", words or 7),
        (lambda: log.hold("photos", 1, "desk", words or 7), "reason", words or 7),
        (lambda: log.deny(target, words or 7, "desk"), "reason", words or 7),
        (lambda: log.deny(target, "ticket 1", words or 7), "requester's name", words or 7),
    ):
        with refusal(InvalidName, what=what, given=given, accepted="UTF-8 text"):
            verb()
    assert log.state.n == n


@pytest.mark.parametrize("words", ["", " ", "\n\t"])
def test_blank_reasons_and_names_are_refused(store, words):
    log = Log(store)
    publish(log)
    n = log.state.n
    target = [Target(kind="sample", value="k", dataset="photos")]
    for verb, what in (
        (lambda: log.retire("photos", 1, words), "reason"),
        (lambda: log.hold("photos", 1, words, "an audit"), "holder's name"),
        (lambda: log.hold("photos", 1, "desk", words), "reason"),
        (lambda: log.deny(target, words, "desk"), "reason"),
        (lambda: log.deny(target, "ticket 1", words), "requester's name"),
        (lambda: Target(kind="raw", value=words), "raw to take down"),
    ):
        with refusal(InvalidName, what=what, given=words, accepted="text that is not blank"):
            verb()
    assert log.state.n == n


def test_aborted_transaction_is_fenced(store):
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
    with refusal(Conflict, what="transaction", where="photos@1", given=txn):
        log.abort(txn, "too late")


def test_unknown_transaction_is_named(store):
    for verb in (lambda log: log.commit("nope", builder("nope")), lambda log: log.abort("nope", "x")):
        with refusal(TransactionNotFound, what="transaction", given="nope"):
            verb(Log(store))


def test_commit_is_rebased_on_the_newest_version_and_on_new_takedowns(store):
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


def test_manifest_built_on_something_else_is_refused(store):
    log = Log(store)
    publish(log)
    txn = log.begin("photos").txn
    stale = builder(txn)(replace(log.state, datasets={}))
    with refusal(Conflict, what="manifest", where=f"transaction {txn}", given="Rebase"):
        log.commit(txn, lambda state: stale)


def test_two_versions_cannot_share_an_id(store):
    log = Log(store)
    one = publish(log)
    txn = log.begin("photos").txn
    with refusal(Conflict, what="id", where="photos@1", given=one.id):
        log.commit(txn, lambda s: replace(builder(txn)(s), id=one.id, sha256=one.sha256))


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"id": "v-" + "0" * 64}, {"id": "0" * 64}])
def test_version_has_the_id_of_its_manifest(store, change):
    """Who writes such a commit is refused; so is, by every reader, an entry that another tool wrote."""
    log = Log(store)
    txn = log.begin("photos").txn
    good = builder(txn)(log.state)
    fault = {"id": good.id, "sha256": good.sha256} | change
    with refusal(InvalidName, what="id", given=fault["id"], accepted=f"v-{fault['sha256']}"):
        replace(good, **change)
    body = {"kind": "commit", "txn": txn, "dataset": "photos", "number": 1, "parent": None, "denies": 0}
    body |= {"id": good.id, "sha256": good.sha256, "manifest": good.manifest}
    assert fold(log.state, next_entry(log.state, **body)).version("photos", 1).id == good.id
    store.put(entry_key(2), next_entry(log.state, **(body | change)).data)
    with refusal(Corrupt, what="id", given=fault["id"], accepted=f"v-{fault['sha256']}"):
        Log(store).refresh()


def test_retired_version_is_no_parent_and_no_latest(store):
    log = Log(store)
    one, two = publish(log), publish(log)
    txn = log.begin("photos").txn
    assert log.retire("photos", 2, "bad labels").retired == "bad labels"
    assert log.retire("photos", 2, "again").retired == "bad labels"
    with refusal(VersionRetired, what="version", where="photos@2", given="bad labels"):
        log.begin("photos", parent=two.id)
    with refusal(VersionNotFound, what="parent", where="photos", given="v-unknown"):
        log.begin("photos", parent="v-unknown")
    with refusal(VersionNotFound, what="version", given="photos@9"):
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
    with refusal(Conflict, what="name", where="photos@2026.11.20", given="tag", accepted="tag"):
        log.ref("photos", "2026.11.20", "tag", 2)
    with refusal(Conflict, what="name", where="photos@2026.11.20", given="alias", accepted="tag"):
        log.ref("photos", "2026.11.20", "alias", 2, was=1)
    with refusal(Conflict, what="name", where="photos@prod", given="tag", accepted="alias"):
        log.ref("photos", "prod", "tag", 3)
    with refusal(Conflict, what="expected_number", where="photos@prod", given=1, accepted=2):
        log.ref("photos", "prod", "alias", 3, was=1)
    with refusal(Conflict, what="expected_number", where="photos@new", given=1):
        log.ref("photos", "new", "alias", 3, was=1)
    with refusal(InvalidName, what="ref_kind", where="photos@new", given="branch", accepted=["tag", "alias"]):
        log.ref("photos", "new", "branch", 3)
    log.retire("photos", 3, "bad")
    with pytest.raises(VersionRetired):
        log.ref("photos", "new", "tag", 3)
    assert log.state.n == n + 1


def test_mirror_is_said_once_for_what_was_written(store):
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
