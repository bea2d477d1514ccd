"""A process of its own: `child.py WHAT URL OPTIONS NAME`, or `child.py jobs` for many that may be killed.

write      root.write with three parts of two samples, keys NAME0..NAME5
publish    begin, two write_part, publish: keys NAME0..NAME3
group      add_group NAME to the newest version
Says "ready", waits for a line, then does it and says the version's number. A job with `at` kills itself (SIGKILL)
at that verb of the store, before or after it took place.
"""

import json
import os
import signal
import sys
import traceback
from itertools import count

import loader
from loader.dataset.log import Log


class Mortal:
    """A store that kills this process at the verb number `at`."""

    def __init__(self, store, at, when):
        self.store, self.url, self.at, self.when = store, store.url, at, when
        self.numbers = count(1)  # entries are probed by several threads: `next` gives each its own

    def __getattr__(self, name):
        verb = getattr(self.store, name)

        def call(*args, **kwargs):
            number = next(self.numbers)
            if number == self.at and self.when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return verb(*args, **kwargs)
            finally:
                if number == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call


def write(root, name):
    with root.write("d", part_samples=2) as writer:
        for i in range(6):
            writer.add(f"{name}{i}", {"cls": i})
    return writer.version


def publish(root, name):
    txn = root.begin("d")
    parts = [
        loader.write_part(root, txn, [(f"{name}{i}", {"cls": i}) for i in some], name=f"{k:05d}")
        for k, some in enumerate(((0, 1), (2, 3)))
    ]
    return root.publish("d", parts)


def group(root, name):
    return root.add_group("d", name, {f"{name}.txt": lambda sample: str(sample["cls"])})


def run(what, url, options, name, at=0, when="before"):
    root = loader.Root(url, options=options)
    if at:
        root.store = Mortal(root.store, at, when)
        root._log = Log(root.store)
    return {"write": write, "publish": publish, "group": group}[what](root, name).number


def forked(job):
    """(exit status, the number it says) of a process that does `job` and may kill itself."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, b"%d" % run(**job))
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        number = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), int(number) if number else None


def main(what, url="", options="{}", name=""):
    if what == "jobs":
        # One JSON per line; each is done by a fork of this process, which has imported already.
        os.fsync = lambda descriptor: None  # a power cut needs it, SIGKILL does not: written is written
        for line in sys.stdin:
            print(json.dumps(forked(json.loads(line))), flush=True)
        return
    print("ready", flush=True)
    sys.stdin.readline()
    print(run(what, url, json.loads(options), name), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
