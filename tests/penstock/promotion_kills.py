"""A promotion that is killed at its k-th request to either store: before the request, and right after it.

`make prove` kills a process (SIGKILL) at every request on local disks, at every fourth on S3; tests stop in this one.
"""

import os
import shutil
import signal
from collections import Counter
from functools import partial

import loader
from loader.errors import Conflict, NotARoot
from loader.storage import open_store
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.migrate.promote import promote
from penstock.upkeep.verify.root import verify_root
from tests.mortal_store import SIDES, Death, Killed, stop


def mortal_root(death, url, options=None):
    root = loader.Root(url, options=options)
    root._use(death.of(root.store))
    return root


def accepts(url, options=None):
    """Whether a root accepts an append, which it then has."""
    try:
        loader.Root(url, options=options).tag("d@1", "tried")
    except (Conflict, NotARoot):
        return False
    return True


def writers(*urls):
    """Which of these folders accept an append. It is tried on copies."""
    accepting = []
    for url in urls:
        copy = f"{url}-tried"
        shutil.copytree(url, copy)
        if accepts(copy):
            accepting.append(url)
        shutil.rmtree(copy)
    return accepting


def primaries(place):
    """Which of its "a" and "b" accept an append. It is tried on a copy."""
    with place.copy() as copy:
        return tuple(name for name in "ab" if accepts(copy.url(name), copy.options))


def has_new_primary(a, b):
    """Whether b is the primary of all that a had, and a its mirror. Folders."""
    assert writers(a, b) == [b]
    is_mirror(loader.Root(a), loader.Root(b))


def is_mirror(a, b):
    assert a.mirror_of == b.url
    assert b.mirror_of is None
    ids = [one.id for one in a.versions("d")]
    assert [one.id for one in b.versions("d")][: len(ids)] == ids
    assert verify_root(b, full=True).problems == []


def stop_promotion(place, k, after):
    """Whether a promotion in this process came so far."""
    death = Death(k, SIDES[after], die=stop)
    try:
        promote(
            mortal_root(death, place.url("a"), place.options), death.of(place.store("b")), Pace(), at_once=2
        )
    except Killed:
        return True
    return False


def run(a, b, options, k, after):
    """What a process of dataset/forks.py does: a promotion, in the middle of which it ends."""
    death = Death(k, SIDES[after])
    promote(mortal_root(death, a, options), death.of(open_store(b, options)), Pace(), at_once=2)


def kill_everywhere(place, ks, kill=stop_promotion):
    """How many kills there were. place: has a primary "a" and a mirror "b"; ks: the requests, of kills before and of
    kills after them; kill(place, k, after): whether one came so far. After each at most one of the two accepts an
    append, and a second run finishes; before the log was closed and after it was seen."""
    kills, seen = 0, set()
    for after in (False, True):
        for k in ks[after]:
            with place.copy() as copy:
                if not kill(copy, k, after):
                    break
                kills += 1
                accepting = primaries(copy)
                assert len(accepting) <= 1, (k, after)
                seen.add(accepting)
                assert promote(copy.root("a"), copy.store("b"), Pace()).promoted, (k, after)
                assert primaries(copy) == ("b",), (k, after)
                is_mirror(copy.root("a"), copy.root("b"))
    assert seen >= {("a",), ()}
    return kills


def begin(place):
    """A primary with two versions, and a mirror that has one of them."""
    root = place.root("a")
    for key in ("k0", "k1"):
        with root.write("d") as writer:
            writer.add(key, {"x": key.encode()})
        if key == "k0":
            migrate(root, place.store("b"), Pace())
    root.close()


def kill_promotions(where, ks):
    """A job of `make prove`. where: "disk" or "s3"."""
    import forks
    import places

    os.fsync = lambda descriptor: None  # a power cut needs it, SIGKILL does not
    with getattr(places, where)() as place, forks.processes(__file__) as do:

        def kill(copy, k, after):
            job = {"a": copy.url("a"), "b": copy.url("b"), "options": copy.options, "k": k, "after": after}
            ((status, _),) = do(job)
            assert status in (0, -signal.SIGKILL), (k, after, status)
            return status != 0

        begin(place)
        return Counter(kills=kill_everywhere(place, (ks, ks), kill))


MOST = 1_000
"""Requests of a promotion."""
STEPS = {"disk": 1, "s3": 4}
"""On S3 at every fourth request: what differs between two places is the store, not the promotion."""
SHARES = 2
ABOUT_S = 60
"""A share's seconds."""


def jobs():
    """name -> (seconds, call) of what `make prove` does."""
    for where, step in STEPS.items():
        for share in range(SHARES):
            ks = range(1 + share * step, MOST, SHARES * step)
            name = f"promotion killed on {where}, request {ks.start} and each {ks.step} on"
            yield name, (ABOUT_S, partial(kill_promotions, where, ks))
