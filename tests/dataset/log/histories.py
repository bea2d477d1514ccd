"""Entries of a log: published versions, takedowns, and one of each kind."""

import hashlib

from loader.dataset.log.append import read_tail
from loader.dataset.log.entries import canonical, seal
from loader.dataset.log.log import Log
from loader.dataset.log.rules import CommitBody


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


def next_entry(state, **body):
    return seal(state.n + 1, state.prev, "ff", 0, body)
