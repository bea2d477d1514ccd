"""What the processes of forks.py do to a log: begin and commit versions, and say each one's number and transaction.

A job with `at` kills itself at that verb of the store.
"""

import hashlib

from loader.dataset.log.entries import canonical
from loader.dataset.log.log import Log
from loader.dataset.log.rules import CommitBody
from loader.dataset.log.state import State
from loader.storage import open_store
from tests.mortal_store import Death


def build(txn: str, state: State) -> CommitBody:
    newest = state.newest(state.txns[txn].dataset)
    parent = newest.id if newest else None
    sha256 = hashlib.sha256(canonical([txn, parent])).hexdigest()
    return CommitBody(
        id=f"v-{sha256}", manifest=f"data/{txn}/m.json", sha256=sha256, parent=parent, denies=state.last_deny
    )


def run(
    url: str, options: dict, dataset: str, versions: int, at: int = 0, when: str = "before"
) -> list[dict]:
    log = Log(Death(at, when).of(open_store(url, options)))
    said = []
    for _ in range(versions):
        txn = log.begin(dataset).txn
        said.append({"txn": txn, "number": log.commit(txn, lambda state, txn=txn: build(txn, state)).number})
    return said
