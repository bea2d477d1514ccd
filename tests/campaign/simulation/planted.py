"""Bugs, each of which the campaign must find within `WORLDS` worlds: what is patched is the code that runs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from loader.dataset.log import append, log
from loader.dataset.log.entries import entry_number
from loader.errors import Transient
from penstock.checkpoints import marker, retention
from penstock.upkeep.gc import collector, plan, sweep
from penstock.upkeep.gc import needed as live

from .campaign import Came, run_world

WORLDS = 50


@contextmanager
def leases_are_ignored() -> Iterator[None]:
    """A collector that looks at no lease."""
    real = live.protected
    blind = lambda state, leases, condemned=(): real(state, [], condemned)  # noqa: E731
    with patch.object(collector, "protected", blind), patch.object(sweep, "protected", blind):
        yield


def skip_last_look() -> AbstractContextManager[Any]:
    """A collector that deletes what was condemned, without another look at log and leases."""
    return patch.object(collector, "last_look", lambda *_, **__: lambda ripe: ripe)


def no_grace() -> AbstractContextManager[Any]:
    """A collector that deletes what it has condemned this moment."""
    real = plan.CollectionPlan.due
    return patch.object(plan.CollectionPlan, "due", lambda self, _: real(self, 0))


def a_torn_listing_is_believed() -> AbstractContextManager[Any]:
    """A reader whose log ends where a listing ends."""
    real = log.read_tail

    def read_tail(store: Any, after: int, *how: Any, **named: Any) -> Iterator[Any]:
        names = {entry_number(info.key) for info in getattr(store, "_store", store).list("log/")}
        for entry in real(store, after, *how, **named):
            if entry.n not in names:
                return
            yield entry

    return patch.object(log, "read_tail", read_tail)


def an_ambiguous_error_is_taken_for_a_loss() -> AbstractContextManager[Any]:
    """A publisher that takes its files back when its commit was answered by an error."""
    real = append._create

    def create(store: Any, entry: Any) -> Any:
        error = real(store, entry)
        if isinstance(error, Transient) and entry.kind == "commit":
            store.delete_many([info.key for info in store.list(f"data/{entry.body['txn']}/")])
        return error

    return patch.object(append, "_create", create)


def another_entry_is_taken_for_ones_own() -> AbstractContextManager[Any]:
    """A writer that does not look at the nonce of what stands in its place."""
    return patch.object(append, "settle", lambda mine, tail: "won" if tail else "absent")


def retention_believes_a_listing() -> AbstractContextManager[Any]:
    """A saver that deletes the parts of every step whose marker is not listed."""

    def apply(store: Any, keep: Any, newest: Any) -> None:
        committed = marker.steps(store, newest.run)
        kept = {*keep.kept(committed), newest.step}
        store.delete_many(marker.marker_key(newest.run, step) for step in committed if step not in kept)
        there = list(retention.remains(store, newest.run))
        store.delete_many(one.key for step, one in there if step < newest.step and step not in kept)

    return patch.object(retention, "apply", apply)


BUGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    one.__name__: one
    for one in (
        leases_are_ignored,
        skip_last_look,
        no_grace,
        a_torn_listing_is_believed,
        an_ambiguous_error_is_taken_for_a_loss,
        another_entry_is_taken_for_ones_own,
        retention_believes_a_listing,
    )
}


def first_detection(name: str, worlds: int = WORLDS) -> Came | None:
    """The first world in which a planted bug is found, and in which nothing is wrong without it; None for none."""
    for seed in range(worlds):
        with BUGS[name]():
            came = run_world(seed)
        if came.violation and not run_world(seed).violation:
            return came
    return None
