"""A store that counts the verbs asked of it."""

from collections import Counter


class Counting:
    """Passes every verb on and counts it as (verb, first segment of the key)."""

    def __init__(self, store):
        self.store, self.url = store, store.url
        self.calls = Counter()
        self.nbytes = 0

    def __getattr__(self, name):
        verb = getattr(self.store, name)

        def call(*args, **kwargs):
            key = args[0] if args and isinstance(args[0], str) else ""
            self.calls[name, key.split("/")[0]] += 1
            found = verb(*args, **kwargs)
            if name in ("get", "get_range"):
                self.nbytes += len(found.data)
            return found

        return call

    @property
    def total(self):
        return sum(self.calls.values())

    def of(self, verb):
        return sum(n for (name, _), n in self.calls.items() if name == verb)

    def under(self, folder):
        return sum(n for (_, key), n in self.calls.items() if key == folder)
