"""A writer that is killed at its k-th request, for every k: before the request and right after it.

python tests/dataset/kills.py          every k of every change, on a local disk: part of `make prove`
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

import loader
from penstock.verify_root import verify_root

CHANGES = {
    "publish": lambda root: root.publish(
        "d", [loader.write_part(root, root.begin("d"), [("new", {"x": b"n"})])]
    ),
    "add_group": lambda root: root.add_group("d", "g", {"t.txt": lambda sample: "t"}),
    "exclude": lambda root: root.exclude("d", ["k0"], reason="blurred"),
    "retire": lambda root: root.retire("d@1", reason="old"),
    "tag": lambda root: root.tag("d@2", "good"),
}
VERBS = ("get", "get_range", "get_ranges", "put", "put_file", "put_if_absent", "list", "head")
KILLED, MOST = -signal.SIGKILL, 500


class Dying:
    """A store whose process is gone at request k; after: once the store has done it."""

    def __init__(self, store, k, after):
        self._store, self._left, self._after, self.url = store, k, after, store.url

    def __getattr__(self, verb):
        found = getattr(self._store, verb)
        if verb not in VERBS:
            return found

        def call(*args, **kwargs):
            self._left -= 1
            if not self._left and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            done = found(*args, **kwargs)
            if self._left <= 0 and self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return call


def begun(folder):
    """Seven versions: the next publish merges their tables."""
    root = loader.Root(folder)
    for run in range(7):
        with root.write("d") as writer:
            writer.add(f"k{run}", {"x": b"%d" % run})
    return root


def content(root):
    """The versions that are not retired, what the newest holds, and the names."""
    newest = root.open("d")
    ids = {record.id for record in root.versions("d") if record.retired is None}
    return ids, (newest.samples().collect()["key"].to_list(), newest.fields), dict(root.state.refs)


def killed_at(make, change, k, after):
    """False once the change makes fewer than k requests. After the kill everything is as before or as after, nothing in
    between, and the same change can be made again."""
    root = make()
    before = content(root)
    child = os.fork()
    if not child:
        root = loader.Root(root.url)
        root._use(Dying(root.store, k, after))
        try:
            CHANGES[change](root)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    root = loader.Root(root.url)
    now = content(root)
    if now != before:
        assert len(now[0]) - len(before[0]) == {"retire": -1, "tag": 0}.get(change, 1), (change, k, after)
    else:
        CHANGES[change](root)
        assert content(root) != before
    report = verify_root(root, full=True)
    assert report.problems == [], (change, k, after, report.problems)
    return os.waitstatus_to_exitcode(status) == KILLED


def kill_everywhere(make, change, step=1):
    """How many kills there were. Every `step`-th request."""
    kills = 0
    for k in range(1, MOST, step):
        for after in (False, True):
            if not killed_at(make, change, k, after):
                return kills
            kills += 1
    raise AssertionError(f"{change} makes more than {MOST} requests")


def main():
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(100_000))
        for change in CHANGES:
            kills = kill_everywhere(lambda: begun(Path(folder) / str(next(numbers))), change)
            print(f"{change}: killed at {kills} places, and every version was whole or not there", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
