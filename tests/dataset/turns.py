"""Actors that write to one root at once, one request at a time: whose is next is chosen from outside.

Every request of every actor waits until each of them has one to make, or is done; then one goes on. So a run is the
choices made, and Hypothesis can look for the ones that break something.
"""

import threading

import loader
from loader.errors import Transient
from tests.servers.patience import PATIENCE_S

VERBS = ("get", "get_range", "get_ranges", "put", "put_if_absent", "put_file", "head", "list", "delete_many")


class Turns:
    """choices: the next request is that of waiting actor `choice % n`, or of the one of this name, if it is not done.
    faults: how many writes to the log are answered with an error: after the write, or instead of it, in turns. wrote:
    an entry's bytes -> who wrote it; taken: whose request each was."""

    def __init__(self, choices, faults=0):
        self._choices, self._faults = iter(choices), faults
        self._moved = threading.Condition()
        self._waiting, self._running = {}, set()
        self.taken, self.wrote = [], {}

    def run(self, url, jobs):
        """name -> what job(root) gave, or raised."""
        results = {}

        def act(name, job):
            root = loader.Root(url)
            root._use(Taking(root.store, self, name))
            try:
                results[name] = job(root)
            except Exception as error:  # noqa: BLE001 - whatever it was is for the test to judge
                results[name] = error
            with self._moved:
                self._running.discard(name)
                self._moved.notify_all()

        self._running = set(jobs)
        threads = [threading.Thread(target=act, args=item, daemon=True) for item in jobs.items()]
        for thread in threads:
            thread.start()
        while self._next():
            pass
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        return results

    def _next(self):
        with self._moved:
            ready = self._moved.wait_for(lambda: self._running <= self._waiting.keys(), PATIENCE_S)
            assert ready, "an actor neither asks for anything nor ends"
            if not self._running:
                return False
            name = self._choice(sorted(self._running))
            self.taken.append(name)
            self._waiting[name].pop(0).set()
            if not self._waiting[name]:
                del self._waiting[name]
            return True

    def _choice(self, names):
        for choice in self._choices:
            if isinstance(choice, int):
                return names[choice % len(names)]
            if choice in names:
                return choice
        return names[0]

    def take(self, name, action, entry=b""):
        """Run a request when it is its turn. entry: what it writes to the log."""
        turn = threading.Event()
        with self._moved:
            if name not in self._running:  # what its threads still do when it is done
                return action()
            self._waiting.setdefault(name, []).append(turn)
            self._moved.notify_all()
        assert turn.wait(PATIENCE_S)
        if not entry:
            return action()
        self.wrote[entry] = name
        if not self._faults:
            return action()
        self._faults -= 1
        if self._faults % 2:
            action()
        raise Transient("log: the connection was reset")


class Taking:
    """A store whose requests wait for their turn: those that a version's bytes depend on. A listing is one request.
    Signs of life, which threads write whenever they like, and what a garbage collector gives back, do not wait."""

    def __init__(self, store, turns, name):
        self._store, self._turns, self._name = store, turns, name
        self.url = store.url

    def __getattr__(self, verb):
        found = getattr(self._store, verb)
        if verb not in VERBS:
            return found

        def call(*args, **kwargs):
            key = args[0] if args and isinstance(args[0], str) else ""
            if key.startswith("heartbeats/") or (verb == "delete_many" and args[0][0].startswith("leases/")):
                return found(*args, **kwargs)
            if verb == "list":
                return iter(self._turns.take(self._name, lambda: list(found(*args, **kwargs))))
            entry = args[1] if verb == "put_if_absent" and key.startswith("log/0") else b""
            return self._turns.take(self._name, lambda: found(*args, **kwargs), entry)

        return call
