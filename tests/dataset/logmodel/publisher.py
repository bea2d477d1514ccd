"""A publisher as a process of its own: `publisher.py URL OPTIONS DATASET VERSIONS [KILL_AT before|after]`.

Says "ready", waits for a line, then begins and commits VERSIONS versions, and says each one's number and
transaction. With KILL_AT it kills itself (SIGKILL) at that verb of the store, before or after it took place.
"""

import hashlib
import json
import os
import signal
import sys
from itertools import count

from loader.dataset.decide import CommitBody
from loader.dataset.entries import canonical
from loader.dataset.history import State
from loader.dataset.log import Log
from loader.storage import open_store


class Mortal:
    """A store that kills this process at the verb number `at`."""

    def __init__(self, store, at: int, when: str) -> None:
        self.store, self.url, self.at, self.when = store, store.url, at, when
        self.numbers = count(1)  # entries are probed by several threads: `next` gives each its own

    def __getattr__(self, name):
        verb = getattr(self.store, name)

        def call(*args):
            number = next(self.numbers)
            if number == self.at and self.when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return verb(*args)
            finally:
                if number == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call


def build(txn: str, state: State) -> CommitBody:
    newest = state.newest(state.txns[txn].dataset)
    parent = newest.id if newest else None
    sha256 = hashlib.sha256(canonical([txn, parent])).hexdigest()
    return CommitBody(
        id=f"v-{sha256}", manifest=f"data/{txn}/m.json", sha256=sha256, parent=parent, denies=state.last_deny
    )


def main(url: str, options: str, dataset: str, versions: str, at: str = "0", when: str = "before") -> None:
    log = Log(Mortal(open_store(url, json.loads(options)), int(at), when))
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(versions)):
        txn = log.begin(dataset).txn
        number = log.commit(txn, lambda state, txn=txn: build(txn, state)).number
        print(json.dumps({"txn": txn, "number": number}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
