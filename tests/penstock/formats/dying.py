"""A store whose user is killed at its k-th write."""


class Killed(BaseException):
    """No code of ours runs after it."""


def kill():
    raise Killed


class Dying:
    """A store whose user is killed at its k-th write, before or after it."""

    def __init__(self, store, k, after=False, kill=kill, verbs=("put",)):
        self.store, self.url, self.remaining, self.after = store, store.url, k, after
        self.kill, self.verbs = kill, verbs

    def __getattr__(self, name):
        verb = getattr(self.store, name)
        if not name.startswith(self.verbs):
            return verb

        def write(*args):
            self.remaining -= 1
            if self.remaining <= 0 and not (self.after and self.remaining == 0):
                self.kill()
            verb(*args)
            if self.remaining <= 0:
                self.kill()

        return write
