"""Actors that write to one root at once, one request at a time: whose is next is chosen from outside.

Every request of every actor waits until each of them has one to make, or is done; then one goes on. So a run is the
choices made, and Hypothesis can look for the ones that break something.
"""

import threading

import loader
from loader.errors import Transient

DEADLINE_S = 60


class Turns:
    """choices: numbers; the next request is that of waiting actor `choice % n`. faults: how many writes to the log are
    answered with an error: after the write, or instead of it, in turns."""

    def __init__(self, choices, faults=0):
        self._choices, self._faults = iter(choices), faults
        self._moved = threading.Condition()
        self._waiting, self._running = {}, set()
        self.taken = []

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
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        return results

    def _next(self):
        with self._moved:
            ready = self._moved.wait_for(lambda: self._running <= self._waiting.keys(), DEADLINE_S)
            assert ready, "an actor neither asks for anything nor ends"
            if not self._running:
                return False
            names = sorted(self._running)
            name = names[next(self._choices, 0) % len(names)]
            self.taken.append(name)
            self._waiting[name].pop(0).set()
            if not self._waiting[name]:
                del self._waiting[name]
            return True

    def take(self, name, key, action):
        """Run a request when it is its turn."""
        turn = threading.Event()
        with self._moved:
            if name not in self._running:  # what its threads still do when it is done
                return action()
            self._waiting.setdefault(name, []).append(turn)
            self._moved.notify_all()
        assert turn.wait(DEADLINE_S)
        if not key.startswith("log/0") or not self._faults:
            return action()
        self._faults -= 1
        if self._faults % 2:
            action()
        raise Transient(f"{key}: the connection was reset")


class Taking:
    """A store whose requests wait for their turn."""

    def __init__(self, store, turns, name):
        self._store, self._turns, self._name = store, turns, name
        self.url = store.url

    def __getattr__(self, verb):
        found = getattr(self._store, verb)
        if verb not in ("get", "put_if_absent", "list", "put_file"):
            return found

        def call(key="", *args, **kwargs):
            if key.startswith(("heartbeats/", "leases/")) or verb == "list":
                return found(key, *args, **kwargs)
            if verb != "put_if_absent":
                return self._turns.take(self._name, "", lambda: found(key, *args, **kwargs))
            return self._turns.take(self._name, key, lambda: found(key, *args, **kwargs))

        return call
