"""Plants a bug in the collector and shows that the property which should catch it does; each holds without."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import loader
from loader.dataset import leases as lease
from loader.errors import PenstockError
from penstock.upkeep.gc import classify as sort_out
from penstock.upkeep.gc import clients as notes
from penstock.upkeep.gc import clock, collector, plan, sweep
from penstock.upkeep.gc import needed as live
from penstock.upkeep.gc import needed as lost
from penstock.upkeep.gc.clients import Clients

real_protected = live.protected


def everywhere(patch, protected):
    for module in (collector, sweep):
        patch.setattr(module, "protected", protected)


def without(patch, **gone):
    """Some claims of the log are forgotten."""
    everywhere(patch, lambda state, leases, ids=(): real_protected(replace(state, **gone), leases, ids))


def grace_ignored(patch):
    real = plan.Plan.due
    patch.setattr(plan.Plan, "due", lambda self, grace_us: real(self, 0))


def leases_ignored(patch):
    everywhere(patch, lambda state, leases, ids=(): real_protected(state, [], ids))


def the_last_look_is_left_out(patch):
    patch.setattr(collector, "last_look", lambda *_, **__: lambda ripe: ripe)


def the_last_look_does_not_read_leases_again(patch):
    real = collector.last_look

    def last_look(root, clients, leases, *more, **named):
        return real(root, clients, SimpleNamespace(read=lambda: clients.leases), *more, **named)

    patch.setattr(collector, "last_look", last_look)


def a_lease_that_is_not_listed_is_gone(patch):
    real = lease.Leases.read

    def read(self, also=()):
        self._known = {}
        return real(self)

    patch.setattr(lease.Leases, "read", read)


def parents_of_open_transactions_forgotten(patch):
    def protected(state, leases, ids=()):
        txns = {name: replace(txn, parent=None) for name, txn in state.txns.items()}
        return real_protected(replace(state, txns=txns), leases, ids)

    everywhere(patch, protected)


def holds_forgotten(patch):
    without(patch, holds=())


def names_forgotten(patch):
    without(patch, refs={})


def a_takedown_passes_holds_too(patch):
    def protected(state, leases, ids=()):
        holds = tuple(one for one in state.holds if state.version(one.dataset, one.number).id not in ids)
        return real_protected(replace(state, holds=holds), leases, ids)

    everywhere(patch, protected)


def a_takedown_passes_what_is_not_retired(patch):
    def protected(state, leases, ids=()):
        kept = real_protected(state, leases, ids)
        return {id: one for id, one in kept.items() if id not in ids}

    everywhere(patch, protected)


def open_transactions_are_leftovers(patch):
    real = sort_out._fate
    patch.setattr(sort_out, "_fate", lambda *a: sort_out.LEFTOVER if real(*a) == sort_out.OPEN else real(*a))


def foreign_files_are_leftovers(patch):
    patch.setattr(sort_out, "OURS", r"^data/(?P<txn>[A-Za-z0-9][A-Za-z0-9._-]*)/.*$")


def shared_shards_forgotten(patch):
    patch.setattr(live, "_shards", lambda *_: [])


def whoever_is_silent_once_is_dead(patch):
    patch.setattr(Clients, "is_dead", lambda self, key, said: self.signs.said[key][1] > 0)


def the_dead_live_for_ever(patch):
    patch.setattr(Clients, "is_dead", lambda self, key, said: False)


def silent_transactions_stay_open(patch):
    patch.setattr(Clients, "silent_txns", lambda self, state: [])


def a_dry_run_aborts(patch):
    real = collector.look

    def look(store, name, state, *more):
        clients = real(store, name, state, *more)
        for txn in clients.silent_txns(state):
            loader.Root(store.url).log.abort(txn, "silent")
        return clients

    patch.setattr(collector, "look", look)


def deleted_before_it_is_on_record(patch):
    real = sweep.Record.append

    def append(self, checked, at_us):
        self._root.store.delete_many(checked["key"].to_pylist())
        return real(self, checked, at_us)

    patch.setattr(sweep.Record, "append", append)


def caps_ignored(patch):
    patch.setattr(sweep, "_within", lambda ripe, caps, done: ripe)


def what_is_too_large_is_in_the_way(patch):
    patch.setattr(sweep, "_small_enough", lambda ripe, caps, done: ripe)


def what_cannot_be_deleted_is_in_the_way(patch):
    patch.setattr(sweep, "delete", lambda store, keys: store.delete_many(keys) or {})


def what_is_on_record_is_put_there_again(patch):
    real = sweep.Record._known
    patch.setattr(sweep.Record, "_known", lambda self: real(self) and {})


def everywhere_passed(patch, does):
    """does(passed, before, now, most_us) in place of `passed`."""
    real = clock.passed
    for module in (notes, plan):
        patch.setattr(module, "passed", lambda *about: does(real, *about))


def by_wall_clock(real, before, now, most_us):
    return real(before and replace(before, run=""), now, most_us)


def the_wall_clock_counts_while_a_machine_runs(patch):
    everywhere_passed(patch, lambda real, before, now, _: by_wall_clock(real, before, now, 2**62))


def a_jump_of_the_clock_counts_in_part(patch):
    everywhere_passed(patch, by_wall_clock)


def a_jump_between_two_runs_counts(patch):
    everywhere_passed(patch, lambda real, before, now, _: real(before, now, 2**62))


def a_clock_put_back_is_not_noticed(patch):
    everywhere_passed(patch, lambda real, before, *more: None if before is None else real(before, *more) or 0)


def all_collectors_share_their_notes(patch):
    patch.setattr(collector, "check_name", lambda name: "everybody")


def a_broken_version_is_skipped(patch):
    patch.setattr(lost.Unreadable, "without", lambda *_: None)


def leases_alone_keep_what_is_retired(patch):
    """Where a file is missing."""
    patch.setattr(lost, "claims", lambda *_: {})


def whatever_is_retired_may_be_damaged(patch):
    real = lost.Unreadable.without
    patch.setattr(
        lost.Unreadable, "without", lambda self, record, *more: record.retired or real(self, record, *more)
    )


def the_record_of_what_was_swept_is_not_read(patch):
    patch.setattr(lost, "read_swept", lambda store: iter(()))


def cards_stay(patch):
    patch.setattr(collector, "cards", lambda *_: iter(()))


def signs_of_the_dead_stay(patch):
    for name in ("heartbeats", "dead_leases"):
        patch.setattr(collector, name, lambda *_: iter(()))


CASES = [
    (grace_ignored, "a_retired_version_goes_after_the_grace_and_not_before"),
    (leases_ignored, "a_leased_version_stays"),
    (the_last_look_is_left_out, "a_lease_that_moves_again_before_the_sweep_keeps_its_version"),
    (the_last_look_does_not_read_leases_again, "a_lease_that_moves_again_before_the_sweep_keeps_its_version"),
    (a_lease_that_is_not_listed_is_gone, "a_lease_that_listings_lack_keeps_its_version"),
    (parents_of_open_transactions_forgotten, "the_parent_of_an_open_transaction_stays"),
    (holds_forgotten, "a_held_version_stays"),
    (names_forgotten, "a_named_version_stays"),
    (a_takedown_passes_holds_too, "a_takedown_passes_names_and_leases_and_no_hold"),
    (a_takedown_passes_what_is_not_retired, "a_takedown_passes_names_and_leases_and_no_hold"),
    (open_transactions_are_leftovers, "an_open_transaction_that_moves_loses_nothing"),
    (foreign_files_are_leftovers, "what_is_not_ours_stays"),
    (shared_shards_forgotten, "what_versions_share_stays"),
    (whoever_is_silent_once_is_dead, "a_lease_that_does_not_move_keeps_nothing"),
    (the_dead_live_for_ever, "a_lease_that_does_not_move_keeps_nothing"),
    (silent_transactions_stay_open, "a_silent_transaction_is_aborted_and_can_commit_nothing"),
    (a_dry_run_aborts, "a_silent_transaction_is_aborted_and_can_commit_nothing"),
    (deleted_before_it_is_on_record, "every_deletion_is_on_record_before_it_is_done"),
    (caps_ignored, "no_more_than_the_caps_goes"),
    (what_is_too_large_is_in_the_way, "an_object_above_the_cap_is_passed_over_and_named"),
    (what_cannot_be_deleted_is_in_the_way, "what_cannot_be_deleted_is_passed_over_and_named"),
    (what_is_on_record_is_put_there_again, "what_cannot_be_deleted_is_passed_over_and_named"),
    (the_wall_clock_counts_while_a_machine_runs, "a_clock_that_is_set_aborts_nobody"),
    (a_jump_of_the_clock_counts_in_part, "a_clock_that_is_set_ends_no_grace"),
    (a_jump_between_two_runs_counts, "a_clock_that_is_set_aborts_nobody"),
    (a_jump_between_two_runs_counts, "a_clock_that_jumps_between_two_runs_ends_no_grace"),
    (a_clock_put_back_is_not_noticed, "a_clock_that_jumps_between_two_runs_ends_no_grace"),
    (all_collectors_share_their_notes, "each_clock_waits_for_its_own_grace"),
    (a_broken_version_is_skipped, "a_version_that_cannot_be_read_stops_the_collector"),
    (leases_alone_keep_what_is_retired, "what_the_log_keeps_is_not_deleted_because_it_cannot_be_read"),
    (whatever_is_retired_may_be_damaged, "what_the_log_keeps_is_not_deleted_because_it_cannot_be_read"),
    (the_record_of_what_was_swept_is_not_read, "what_a_collector_may_have_taken_ends_no_look"),
    (cards_stay, "what_goes_with_a_version_goes"),
    (signs_of_the_dead_stay, "what_goes_with_a_version_goes"),
]


@pytest.mark.parametrize(("plant", "name"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_a_planted_bug_is_caught(monkeypatch, properties, plant, name):
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, PenstockError)):
            getattr(properties, name)()


@pytest.mark.mutants
@pytest.mark.parametrize("plant", [grace_ignored, leases_ignored], ids=lambda plant: plant.__name__)
def test_a_planted_bug_does_not_outlive_the_machine(monkeypatch, properties, shared, plant):
    chosen = settings(
        max_examples=150,
        stateful_step_count=20,
        deadline=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=[Phase.generate],
    )
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, PenstockError)):
            run_state_machine_as_test(shared("penstock/upkeep/gc/lives").machine(properties), settings=chosen)


def test_every_property_holds_without(properties, subtests):
    for prop in properties.ALL:
        with subtests.test(prop.__name__):
            prop()
