"""Plants a bug in takedowns and shows that what should catch it does: each case expects an AssertionError."""

import hashlib
from dataclasses import replace

import pytest

from loader.dataset.publishing import apply_denies
from loader.dataset.publishing import commit as publish
from loader.dataset.tables.parquet import TableFile
from loader.dataset.writing import redact
from penstock.upkeep.takedown import rewrite, steps
from penstock.upkeep.verify.version import verify

SECRET = "ZQALICEZQ"


def deny_not_read_again_at_the_commit(patch):
    """A takedown that came after the change was first built, before which there was none, is not applied."""
    real = publish.apply_denies
    patch.setattr(
        publish, "apply_denies", lambda store, state, *rest: real(store, replace(state, denies=()), *rest)
    )


def a_group_keeps_its_own_rows(patch):
    patch.setattr(apply_denies, "_not_live", lambda *ignored: {})


def a_group_is_not_redacted(patch):
    real = redact.redact_shard
    patch.setattr(
        redact,
        "redact_shard",
        lambda s, p, shard, rows: shard if shard["group"] == "up" else real(s, p, shard, rows),
    )


def statistics_are_not_made_again(patch):
    patch.setattr(
        rewrite._Redaction,
        "_statistics",
        lambda self, prefix, before, mine, new, columns: old_stats(self, mine),
    )


def old_stats(redaction, mine):
    """The statistics beside a run's samples, as they were."""
    folder = mine[0]["path"].rpartition("/")[0]
    (path,) = (one.key for one in redaction._store.list(folder) if "stats" in one.key)
    data = redaction._store.get(path).data
    return TableFile(path=path, nbytes=len(data), sha256=hashlib.sha256(data).hexdigest(), n_rows=0)


def keys_stay(patch):
    patch.setattr(apply_denies, "placeholder", lambda salt, key, taken: key)


def checksums_stay(patch):
    patch.setattr(redact, "crc_of_zeros", lambda nbytes: 7)


def only_the_parent_is_retired(patch):
    real = steps.find

    def find(*args):
        found = real(*args)
        found.versions = found.versions[-1:]
        return found

    patch.setattr(steps, "find", find)


def parents_samples_stay_live(patch):
    patch.setattr(apply_denies, "parent_denied", lambda parent, denies: {})


def new_samples(kit, root):
    """A deny that comes before the commit of parts drops them."""
    kit.write(root, "photos", {"p1": "bob"})
    version = kit.write(
        kit.interrupted(root, lambda: kit.deny(root)), "photos", {"p2": SECRET, "p3": "carol"}
    )
    assert sorted(kit.content(version)) == ["p1", "p3"]


def new_groups(kit, root):
    """A group that was made before the deny keeps nothing of its samples."""
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
    mine = kit.interrupted(root, lambda: kit.deny(root))
    version = mine.add_group("photos", "up", {"up.txt": lambda sample: "UP " + sample["txt"]})
    more = [shard["path"] for shard in version.parts.shard_rows().to_pylist() if shard["group"] == "up"]
    assert all(SECRET.encode() not in root.store.get(path).data for path in more)


def old_samples(kit, root):
    """The next commit leaves out what its parent has."""
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
    kit.deny(root)
    assert sorted(kit.content(kit.write(root, "photos", {"p3": "carol"}))) == ["p2", "p3"]


def nothing_left(kit, root):
    """After the takedown and the collection nothing is left, and what is left is sound."""
    kit.write(root, "photos", {f"{SECRET}/one": SECRET, "p2": "bob"})
    root.add_group("photos", "up", {"up.txt": lambda sample: "UP " + sample["txt"]})
    n = kit.deny(root)
    kit.take_down(root, n)
    assert all(one.retired is not None for one in root.versions("photos")[:2])
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    assert verify(root, "photos", full=True).problems == []
    assert sorted(kit.content(root.open("photos"))) == ["p2"]


CASES = [
    (deny_not_read_again_at_the_commit, new_samples),
    (a_group_keeps_its_own_rows, new_groups),
    (parents_samples_stay_live, old_samples),
    (a_group_is_not_redacted, nothing_left),
    (statistics_are_not_made_again, nothing_left),
    (keys_stay, nothing_left),
    (checksums_stay, nothing_left),
    (only_the_parent_is_retired, nothing_left),
]


@pytest.mark.parametrize(("plant", "prop"), CASES, ids=lambda case: case.__name__)
def test_a_planted_bug_is_caught(monkeypatch, kit, root, plant, prop):
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError):
            prop(kit, root)


@pytest.mark.parametrize("prop", sorted({prop for _, prop in CASES}, key=lambda prop: prop.__name__))
def test_it_holds_without_a_bug(kit, root, prop):
    prop(kit, root)
