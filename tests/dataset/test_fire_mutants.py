"""Plants bugs in collectors, takedowns and publishers that only an interleaving finds; others: tests/planted_bugs."""

from dataclasses import replace

import pytest

from loader.dataset.log.log import Log
from loader.dataset.publishing import commit as publish
from loader.errors import PenstockError
from penstock.denied import readable_versions as whole
from penstock.upkeep.gc import collector
from penstock.upkeep.takedown import steps, takedown_run


def another_collectors_work_ends_a_look(patch):
    def forget_condemned(root, state, life, condemned, *, mirror):
        found = collector.protected(state, life.living(life.leases), condemned)
        lost = collector.Unreadable(root.store, state, condemned, mirror=mirror)
        return found, collector.references(root.store, list(found.values()), lost)

    patch.setattr(collector, "_kept_references", forget_condemned)


def takedowns_are_read_once(patch):
    """By whoever publishes, when it first builds its manifest."""
    commit, real, first = Log.commit, publish.apply_denies, {}

    def commit_first_denies(self, txn, build):
        return commit(self, txn, lambda state: (first.setdefault(txn, state.denies), build(state))[1])

    def apply(store, state, txn, *rest):
        return real(store, replace(state, denies=first[txn]), txn, *rest)

    patch.setattr(Log, "commit", commit_first_denies)
    patch.setattr(publish, "apply_denies", apply)


def a_takedown_looks_once(patch):
    """What was published while it worked is not retired."""
    real, first = takedown_run.find, {}

    def find(tables, dataset, *known):
        url = tables.root.url
        return first.setdefault(url, None) or first.update({url: real(tables, dataset, *known)}) or first[url]

    for module in (takedown_run, steps):
        patch.setattr(module, "find", find)


def a_takedown_does_not_begin_again(patch):
    from penstock.denied import find
    from penstock.upkeep.takedown import raw_objects as raw
    from penstock.upkeep.takedown import scan as leftovers

    for module in (find, leftovers, raw, steps):
        patch.setattr(
            module, "read_whole_versions", lambda root, dataset, work: work(whole._whole(root, dataset))
        )


MUTANTS = [
    (another_collectors_work_ends_a_look, ["collect", "takedown", "shared"]),
    (takedowns_are_read_once, ["bring", "takedown"]),
    (a_takedown_looks_once, ["takedown", "write"]),
    (a_takedown_does_not_begin_again, ["takedown", "collect", "shared"]),
]


@pytest.mark.mutants
@pytest.mark.parametrize(("plant", "kinds"), MUTANTS, ids=lambda case: getattr(case, "__name__", ""))
def test_planted_bug_does_not_outlive_the_interleavings(monkeypatch, shared, plant, kinds):
    """The first actor is interrupted by the others, at one request after the other."""
    step = 8 if plant is a_takedown_does_not_begin_again else 1
    runs = shared("dataset/actors").interrupt_everywhere(kinds, step=step)
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, PenstockError)):
            list(runs)
