"""Roots to collect, looks of a collector, and what is there. Hours are those of the collector's clock."""

import itertools

import numpy as np

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.tables.manifest import references
from loader.dataset.versions.version import Version
from loader.errors import Forbidden, ObjectNotFound
from penstock.upkeep.gc import Moment, Options, collect
from tests.proxy_stores import ObservedStore, ProxyStore

HOUR_US = 3_600_000_000
_numbers = itertools.count()


def fresh():
    """An empty root in memory."""
    return loader.Root(f"memory://collect-{next(_numbers)}")


def again(root):
    """The same root in another process's hands."""
    return loader.Root(root.url)


def write(root, name, n=3, dataset="d"):
    with root.write(dataset, part_samples=2) as writer:
        for i in range(n):
            writer.add(f"{name}{i}", {"cls": i}, metadata={"w": i})
    return root.record(f"{dataset}@{writer.version.number}")


def two_versions(root):
    """d@1, and d@2 that holds none of its bytes: what is d@1's alone is all of it."""
    one = write(root, "a")
    root.retire("d@1", reason="old")
    two = write(root, "b")
    root.close()
    return one, two


def look(root, hours, *, wall=0, run="one", **options):
    """What a collector does at this hour, deleting what is due. wall: hours that its wall clock is off; run: the name
    of its machine's run."""
    apply = options.pop("apply", True)
    at_us = round(hours * HOUR_US)
    at = Moment(at_us=at_us + round(wall * HOUR_US), run=run, run_us=at_us)
    return collect(root, Options(**{"name": "c", **options}), apply=apply, at=at)


def is_whole(root, record):
    """Whether every object of a version is there, and every field has its checksum."""
    try:
        version = Version.of_record(root.store, record)
        for one in references(root.store, version.manifest):
            root.store.head(one.path)
        for group in version.manifest["groups"].values():
            view = version.select(*group["field_nbytes"], where_present=True)
            at = view.version_ordinals(np.arange(len(view), dtype=np.int64))
            read_fields(root.store, version.address(at, sorted(group["field_nbytes"])))
    except ObjectNotFound:
        return False
    return True


def is_gone(root, record):
    """Whether nothing of what only this version's transaction uploaded is left."""
    return not list(root.store.list(f"data/{record.txn}/"))


def live_keys(root, *records):
    """The keys under data/ that these versions are made of."""
    keys = set()
    for record in records:
        manifest = Version.of_record(root.store, record).manifest
        keys |= {record.manifest, *(one.path for one in references(root.store, manifest))}
    return keys


def there(root, folder="data/"):
    return {info.key for info in root.store.list(folder)}


def root_bytes(root):
    """Bytes of all objects but the collector's own."""
    own = ("collect/", "swept/")
    return sum(info.nbytes for info in root.store.list("") if not info.key.startswith(own))


def raises(error, call):
    """Whether a call raises this error."""
    try:
        call()
    except error:
        return True
    return False


def retired_with_reader():
    """(a root, its first version, which is retired, and another root that has it open)."""
    root = fresh()
    one = write(root, "a")
    reader = again(root)
    reader.open("d@1")
    write(root, "b")
    root.retire("d@1", reason="old")
    root.close()
    return root, one, reader


def meanwhile(store, verb, does):
    """The store; `does` is called before the first request of this verb, as if somebody else did it meanwhile."""
    waits = [does]
    return ObservedStore(store, lambda name, _: name == verb and waits and waits.pop()())


def lacking(store, folder):
    """The store; its listings of a folder show nothing."""
    return ProxyStore(
        store,
        list=lambda plain, *given: (one for one in plain.list(*given) if not one.key.startswith(folder)),
    )


class Holding:
    """A store that deletes some objects never: it `stops` at the first of them, as a disk, or deletes all others before
    it says so, as a bucket."""

    def __init__(self, store, held, *, stops):
        self._store, self._held, self._stops = store, held, stops

    def __getattr__(self, name):
        return getattr(self._store, name)

    def delete_many(self, keys):
        keys = list(keys)
        held = [key for key in keys if key in self._held]
        end = keys.index(held[0]) if held and self._stops else None
        self._store.delete_many(key for key in keys[:end] if key not in self._held)
        if held:
            raise Forbidden(f"cannot delete {held[0]}: it is held", what="object", given="held")
