"""A writer that is killed at its k-th request that writes, for every k: before the request, or right after it.

`make prove` kills at every k of every change, on a local disk and on S3. Between two writes nothing changes in the
store: a reader may die wherever it likes. S3 is a server process that kills its client (servers/killing.py).
"""

import os
import signal
import urllib.request
from collections import Counter
from functools import partial
from itertools import count
from unittest.mock import patch

import loader
from loader.dataset.log.denies import Target
from loader.dataset.tables.manifest import references
from loader.dataset.versions.version import Version
from penstock.upkeep.gc import Moment, Options, collect, plan
from penstock.upkeep.gc.deleted_record import read_swept
from penstock.upkeep.takedown.prove import prove
from penstock.upkeep.takedown.takedown_run import run_takedown
from penstock.upkeep.verify.root import verify_root

KILLED = -signal.SIGKILL
SECRET, HOUR_US = b"ZQALICEZQ", 3_600_000_000
MOST = 1_000
"""Requests of a change."""


def write(root):
    with root.write("d", part_samples=2) as writer:
        for number in range(6):
            writer.add(f"new{number}", {"x": b"n"})


def publish(root):
    txn = root.begin("d")
    parts = [loader.write_part(root, txn, [(f"new{n}", {"x": b"n"})], name=f"{n:05d}") for n in range(2)]
    root.publish("d", parts)


def take_alice(root):
    n = root.log.deny((Target(kind="subject", value="alice"),), "ticket", "desk").n
    run_takedown(root, n, apply=True)


def sweep(root):
    with patch.object(plan, "ROWS", 2):  # several pieces
        at = Moment(at_us=80 * HOUR_US, run="one", run_us=80 * HOUR_US)
        collect(root, Options(name="c"), apply=True, at=at)


CHANGES = {
    "write": write,
    "publish": publish,
    "add_group": lambda root: root.add_group("d", "g", {"t.txt": lambda sample: "t"}),
    "annotate": lambda root: root.annotate("d", "labels", {"k1": {"label": "cat"}}, author="a"),
    "exclude": lambda root: root.exclude("d", ["k0"], reason="blurred"),
    "retire": lambda root: root.retire("d@1", reason="old"),
    "tag": lambda root: root.tag("d@2", "good"),
    "takedown": take_alice,
    "sweep": sweep,
}
AGAIN = ("takedown", "sweep")
"""What goes on where it was, however far it came."""


def run(change, url, options, at, when):
    """What a process of forks.py does: one change, in the middle of which it is killed. On S3 by the server."""
    from tests.mortal_store import WRITES, Death

    root = loader.Root(url, options=options)
    if options:
        told = f"{options['endpoint_url']}/-/kill?pid={os.getpid()}&at={at}&when={when}"
        urllib.request.urlopen(told).close()
    else:
        root._use(Death(at, when, WRITES).of(root.store))
    CHANGES[change](root)


def begin(place):
    """Seven versions, of which the next publish merges the tables, and bytes that were condemned at hour 0."""
    root = place.root()
    for number in range(7):
        with root.write("d") as writer:
            writer.add(f"k{number}", {"x": b"%d" % number})
            if number == 1:
                writer.add("hers", {"x": SECRET}, {}, {"subject": "alice"})
    for name in ("old", "new"):
        with root.write("e") as writer:
            writer.add(name, {"x": name.encode()})
        root.retire("e@1", reason="old")
    txn = root.begin("e")
    loader.write_part(root, txn, [("never", {"x": b"never"})])
    root.abort(txn, "nobody wants it")
    root.close()
    root = place.root()
    collect(root, Options(name="c"), apply=True, at=Moment(at_us=0, run="one"))
    root.close()


def content(root):
    """The versions that are not retired, what the newest holds, and the names."""
    newest = root.open("d")
    columns = [name for name in ("key", "label") if name == "key" or name in newest.manifest["columns"]]
    rows = newest.samples().select(columns).collect().rows()
    ids = {record.id for record in root.versions("d") if record.retired is None}
    refs = {name: ref.number for (_, name), ref in root.state.refs.items()}
    return len(ids), (rows, newest.fields), refs


def live_objects(root):
    """Every object that the versions are made of which are not retired."""
    keys = set()
    for name in root.datasets():
        for record in root.versions(name):
            if record.retired is None:
                manifest = Version.of_record(root.store, record).manifest
                keys |= {record.manifest, *(one.path for one in references(root.store, manifest))}
    return keys


def objects(root):
    return {info.key for info in root.store.list("data/")}


def nothing_is_left(root, keeps_nothing):
    """A collector has deleted what no version needs: every takedown has a complete proof.

    keeps_nothing: stores that nobody can ask which deleted objects they keep.
    """
    root.store.delete_many(sorted(objects(root) - live_objects(root)))
    for deny in root.state.denies:
        proof = prove(root, deny.n, keeps_nothing=keeps_nothing)
        assert proof["result"] == "complete", [one for one in proof["places"] if not one["clean"]]


def kill_request(place, do, change, k, when, before, after):
    """Kill `change` of this place's root at request k. False once it makes fewer. After the kill everything is as
    before or as after, nothing in between, and the change can be made again."""
    root = place.root()
    there = objects(root)
    root.close()
    ((status, _),) = do(
        {"change": change, "at": k, "when": when, "url": place.url(), "options": place.options}
    )
    if place.options:
        place.ask("/-/spare")
    assert status in (0, KILLED), (change, k, when)
    root = place.root()
    now = content(root)
    assert change in AGAIN or now in (before, after), (change, k, when, now)
    assert verify_root(root, full=True).problems == [], (change, k, when)
    assert live_objects(root) <= objects(root)
    swept = {key for table in read_swept(root.store) for key in table["key"].to_pylist()}
    assert there - objects(root) <= swept, "what is gone is on record"
    if now == before or change in AGAIN:
        CHANGES[change](root)
        report = verify_root(root, full=True)
        assert report.problems == [], (change, k, when, report.problems)
    assert content(root) == after, (change, k, when)
    if change == "sweep":
        assert objects(root) == live_objects(root)
    if change == "takedown":
        nothing_is_left(root, [root.url] if place.options else [])
        assert not any(SECRET in root.store.get(key).data for key in objects(root))
    root.close()
    return status == KILLED


def kill_everywhere(place, do, change, ks=None):
    """How many kills there were. place: of what `begin` made, which is copied for each; ks: the requests, default
    every one."""
    kills = 0
    with place.copy() as undisturbed:
        root = undisturbed.root()
        before = content(root)
        CHANGES[change](root)
        after = content(root)
        root.close()
    for k in ks or count(1):
        for when in ("before", "after"):
            with place.copy() as copy:
                if not kill_request(copy, do, change, k, when, before, after):
                    return kills
            kills += 1
    return kills


def kill_job(where, change, ks):
    """A job of `make prove`. where: "disk" or "s3"."""
    import forks
    import places

    os.fsync = lambda descriptor: None  # a power cut needs it, SIGKILL does not
    with getattr(places, where)() as place, forks.processes(__file__) as do:
        begin(place)
        return Counter(kills=kill_everywhere(place, do, change, ks))


ABOUT_S = {"write": 20, "publish": 20, "add_group": 30, "annotate": 25, "takedown": 60, "sweep": 30}
"""A change's kills on a disk, in seconds; of others 3."""


def jobs():
    """name -> (seconds, call) of what `make prove` does."""
    for where, slower, at_once in (("s3", 3, 2), ("disk", 1, 1)):
        for change in CHANGES:
            shares = at_once if change in ABOUT_S else 1
            for first in range(1, shares + 1):
                name = f"{change} killed on {where}, request {first} and each {shares} on"
                about_s = slower * ABOUT_S.get(change, 3) / shares
                yield name, (about_s, partial(kill_job, where, change, range(first, MOST, shares)))
