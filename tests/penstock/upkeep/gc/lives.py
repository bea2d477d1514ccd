"""Random lives of a root - publishers, groups, names, retirements, holds, readers and writers that die, two collectors
on clocks that differ - against a model that says only what must be there."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import loader
from loader.errors import Fenced, PenstockError

GRACE, SILENCE = 72, 72
CLOCKS = {"a": 0, "b": -9000}
"""Collector -> hours that its clock is off."""
CLAIMS = ["reader", "hold", "tag", "transaction"]


class Reader:
    """A process that has a version open; `alive` until it is killed."""

    def __init__(self, url, number):
        self.root = loader.Root(url)
        self.version, self.number, self.alive = self.root.open(f"d@{number}"), number, True


def machine(properties):
    class Life(RuleBasedStateMachine):
        @initialize()
        def begin(self):
            self.root = properties.fresh()
            self.count, self.hours = 0, 0
            self.records, self.retired = [], {}  # retired: number -> hour
            self.objects = []  # keys that each version is made of
            self.readers, self.holds, self.named = [], set(), set()
            self.open = {}  # txn -> [part, heartbeat, number of the parent or None, alive]
            self.publish()

        def alive(self):
            return [one.number for one in self.records if one.number not in self.retired]

        def newest(self):
            return max(self.alive(), default=None)

        def published(self):
            self.records.append(self.root.record(self.root.state.newest("d").name))
            self.objects.append(properties.needed(self.root, self.records[-1]))
            self.root.close()

        def pick(self, data, numbers):
            return data.draw(st.sampled_from(sorted(numbers)))

        @rule()
        def publish(self):
            self.count += 1
            with self.root.write("d", part_samples=2) as writer:
                for i in range(3):
                    writer.add(f"k{self.count}-{i}", {"cls": i})
            self.published()

        @precondition(lambda self: self.newest())
        @rule()
        def add_group(self):
            self.count += 1
            self.root.add_group("d", f"g{self.count}", {f"g{self.count}.txt": lambda sample: "t"})
            self.published()

        @precondition(lambda self: self.newest())
        @rule(data=st.data())
        def exclude(self, data):
            version = self.root.open("d")
            keys = version.keys(np.arange(len(version)))
            if len(keys) > 1:
                self.root.exclude("d", [data.draw(st.sampled_from(sorted(keys)))], reason="x")
                self.published()

        @rule()
        def begin_a_transaction(self):
            self.count += 1
            self.begin_on(self.newest())

        def begin_on(self, number):
            txn = self.root.begin("d", parent=f"d@{number}" if number else None)
            part = loader.write_part(self.root, txn, [(f"t{self.count}", {"cls": 1})])
            loader.write_part(self.root, txn, [(f"t{self.count}", {"cls": 1})])  # an attempt that will lose
            beat = self.root.heartbeat(txn)
            beat.beat()
            self.open[txn] = [part, beat, number, True]

        @precondition(lambda self: self.open)
        @rule(data=st.data())
        def end_a_transaction(self, data):
            txn = self.pick(data, self.open)
            part, _, _, alive = self.open.pop(txn)
            try:
                self.root.publish("d", [part])
            except Fenced:
                assert not alive, "a transaction that shows life was aborted"
            except PenstockError as error:  # another field set since every version was retired
                raise AssertionError(str(error)) from error
            else:
                self.published()

        @precondition(lambda self: any(alive for *_, alive in self.open.values()))
        @rule(data=st.data())
        def a_writer_falls_asleep(self, data):
            self.open[self.pick(data, [txn for txn, (*_, alive) in self.open.items() if alive])][3] = False

        def claim(self, what, number):
            """Somebody needs the version."""
            self.count += 1
            if what == "reader":
                self.readers.append(Reader(self.root.url, number))
            elif what == "hold":
                self.root.hold(f"d@{number}", by="alice", why="x")
                self.holds.add(number)
            elif what == "tag":
                self.root.tag(f"d@{number}", f"t{self.count}")
                self.named.add(number)
            elif what == "transaction":
                self.begin_on(number)

        @precondition(lambda self: self.alive())
        @rule(data=st.data(), what=st.sampled_from(CLAIMS))
        def is_claimed(self, data, what):
            self.claim(what, self.pick(data, self.alive()))

        @precondition(lambda self: self.alive())
        @rule(data=st.data(), what=st.sampled_from(["nobody", "nobody", *CLAIMS]))
        def is_retired(self, data, what):
            """With a claim on it, or without."""
            number = self.pick(data, self.alive())
            self.claim(what, number)
            self.root.retire(f"d@{number}", reason="x")
            self.retired[number] = self.hours

        @precondition(lambda self: self.holds)
        @rule(data=st.data())
        def release(self, data):
            number = self.pick(data, self.holds)
            self.holds.remove(number)
            self.root.release(f"d@{number}", by="alice")
            # From now on it may be condemned: the grace runs from here.
            if number in self.retired:
                self.retired[number] = self.hours

        @precondition(lambda self: any(one.alive for one in self.readers))
        @rule(data=st.data(), how=st.sampled_from(["closes", "is killed"]))
        def a_reader_ends(self, data, how):
            reader = data.draw(st.sampled_from([one for one in self.readers if one.alive]))
            reader.alive = False
            if how == "closes":
                reader.root.close()

        @rule(
            hours=st.lists(st.sampled_from([24, 48, 71, 72]), min_size=1, max_size=3),
            names=st.sampled_from(["a", "b", "ab"]),
            jump=st.sampled_from([0, 0, 100, 700, -100]),
            apply=st.sampled_from([True, True, False]),
            most=st.sampled_from([5, 10**6, 10**6]),
        )
        def time_passes(self, hours, names, jump, apply, most):
            """Whoever is alive shows it, then collectors look, at each of these hours. jump: hours by which somebody
            sets their clocks between two looks at once."""
            for some in hours:
                self.hours += some
                for reader in self.readers:
                    if reader.alive:
                        reader.root.renew_leases()
                for _, beat, _, alive in self.open.values():
                    if alive:
                        beat.beat()
                for name in names:
                    for wall in {0, jump}:
                        self.look(name, wall=wall, apply=apply, max_objects=most)
                        self.what_is_needed_is_whole()

        def look(self, name, wall=0, **options):
            wall += CLOCKS[name]
            properties.look(self.root, self.hours, wall=wall, run=name, name=name, **options)

        def needed(self):
            """Numbers of the versions that somebody can open, holds, has named, reads or builds on."""
            numbers = {*self.alive(), *self.holds, *self.named}
            numbers |= {one.number for one in self.readers if one.alive}
            return numbers | {parent for _, _, parent, alive in self.open.values() if alive and parent}

        @invariant()
        def what_is_needed_is_whole(self):
            if not hasattr(self, "records"):
                return
            young = {number for number, hour in self.retired.items() if self.hours - hour < GRACE}
            there = properties.there(self.root)
            for number in sorted(self.needed() | young):
                assert self.objects[number - 1] <= there, f"d@{number}"

        def teardown(self):
            if not hasattr(self, "records"):
                return
            for number in sorted(self.needed()):
                assert properties.is_whole(self.root, self.records[number - 1]), f"d@{number}"
            for reader in self.readers:
                reader.alive = False
            for known in self.open.values():
                known[3] = False
            for _ in range(4):
                self.look("a")
                self.hours += max(GRACE, SILENCE)
            self.look("a")
            kept = [self.records[number - 1] for number in sorted({*self.alive(), *self.holds, *self.named})]
            assert properties.there(self.root) == properties.needed(self.root, *kept)
            assert (
                properties.there(self.root, "leases/") == properties.there(self.root, "heartbeats/") == set()
            )
            assert self.root.log.verify() == self.root.state
            for reader in self.readers:
                reader.root.close()

    return Life
