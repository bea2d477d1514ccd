"""Random sequences of write, add_group, exclude, retire, tag and alias against a model of dictionaries."""

import pickle

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import loader
from loader.errors import Conflict, DuplicateKey, EmptyVersion, SampleNotFound, VersionRetired
from penstock.upkeep.verify.version import verify

KEYS = [f"k{i}" for i in range(12)]


def machine(properties):
    class Dataset(RuleBasedStateMachine):
        """versions[n - 1]: key -> {field: bytes} of version n; metadata: key -> w, the same in all."""

        @initialize()
        def begin(self):
            self.url = properties.fresh_url()
            self.root = loader.Root(self.url)
            self.root.create()
            self.versions, self.retired, self.refs, self.metadata = [], set(), {}, {}
            self.count = 0

        def newest(self):
            alive = [n for n in range(1, len(self.versions) + 1) if n not in self.retired]
            return alive[-1] if alive else None

        def content(self):
            return self.versions[self.newest() - 1] if self.newest() else {}

        def published(self, version, content):
            self.versions.append(content)
            assert version.number == len(self.versions)
            self.check(version.number)

        @rule(
            keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5, unique=True),
            part_samples=st.sampled_from([1, 2, None]),
            split=st.booleans(),
        )
        def write(self, keys, part_samples, split):
            self.count += 1
            samples = {key: {"cls": b"%d" % self.count, "x": key.encode() * self.count} for key in keys}
            clash = [key for key in keys if key in self.content()]
            try:
                # The group of a field is the dataset's: 'x' always lies in its own.
                with self.root.write("d", part_samples=part_samples, groups={"x": "extra"}) as writer:
                    for key, fields in samples.items():
                        writer.add(key, fields, metadata={"w": self.count} if split else {})
            except DuplicateKey as error:
                assert any(repr(key) in str(error) for key in clash)  # noqa: PT017
                return
            assert not clash
            for key in keys:
                self.metadata[key, self.count] = self.count if split else None
            self.published(writer.version, {**self.content(), **samples})

        @rule(
            keys=st.lists(st.sampled_from(KEYS), min_size=2, max_size=5, unique=True),
            dropped=st.integers(0, 4),
        )
        def publish_with_drops(self, keys, dropped):
            """Parts whose first samples the version leaves out; those may be keys that it has already."""
            self.count += 1
            gone, kept = keys[:dropped], keys[dropped:]
            txn = self.root.begin("d")
            rows = [(key, {"cls": self.count, "x": b"new"}, {"w": self.count}) for key in keys]
            parts = [
                loader.write_part(self.root, txn, some, groups={"x": "extra"})
                for some in (rows[:1], rows[1:])
            ]
            after = {**self.content(), **{key: {"cls": b"%d" % self.count, "x": b"new"} for key in kept}}
            drops = dict.fromkeys(gone, "filtered")
            if any(key in self.content() for key in kept):
                properties.catch_error(DuplicateKey, lambda: self.root.publish("d", parts, exclude=drops))
            elif not after:
                properties.catch_error(EmptyVersion, lambda: self.root.publish("d", parts, exclude=drops))
            else:
                for key in kept:
                    self.metadata[key, self.count] = self.count
                self.published(self.root.publish("d", parts, exclude=drops), after)

        @precondition(lambda self: self.newest())
        @rule(data=st.data())
        def publish_better_ones(self, data):
            """New samples and the end of older ones, in one version."""
            self.count += 1
            before, key = self.content(), f"better{self.count}"
            gone = data.draw(st.lists(st.sampled_from(sorted(before)), min_size=1, max_size=4, unique=True))
            txn = self.root.begin("d")
            row = (key, {"cls": self.count, "x": b"better"}, {"w": self.count})
            part = loader.write_part(self.root, txn, [row], groups={"x": "extra"})
            n_versions = len(self.root.state.versions("d"))
            for wrong in ({"nobody": "better"}, {key: "itself"}):
                properties.catch_error(
                    SampleNotFound, lambda w=wrong: self.root.publish("d", [part], supersede=w)
                )
            stale = [record.id for record in self.root.state.versions("d")][:-1]
            for other in ["", *stale]:
                if self.newest() != len(self.versions) or other in stale[self.newest() - 1 :]:
                    continue
                properties.catch_error(Conflict, lambda o=other: self.root.publish("d", [part], onto=o))
            assert len(self.root.state.versions("d")) == n_versions
            self.metadata[key, self.count] = self.count
            after = {one: fields for one, fields in before.items() if one not in gone}
            after[key] = {"cls": b"%d" % self.count, "x": b"better"}
            newest = self.root.state.newest("d").id
            drops = dict.fromkeys(gone, f"{key} is better")
            self.published(self.root.publish("d", [part], supersede=drops, onto=newest), after)

        @precondition(lambda self: self.newest())
        @rule(group=st.sampled_from(["g", "h"]))
        def add_group(self, group):
            before, field = self.content(), f"{group}.txt"
            try:
                version = self.root.add_group(
                    "d", group, {field: lambda sample: f"{group} of {sample['cls']}"}
                )
            except Conflict:
                assert all(field in fields for fields in before.values())
                return
            after = {
                key: {field: f"{group} of {fields['cls'].decode()}".encode(), **fields}
                for key, fields in before.items()
            }
            self.published(version, after)

        @precondition(lambda self: self.newest())
        @rule(data=st.data())
        def exclude(self, data):
            before = self.content()
            keys = data.draw(st.lists(st.sampled_from(sorted(before)), min_size=1, max_size=4, unique=True))
            if len(keys) == len(before):
                properties.catch_error(EmptyVersion, lambda: self.root.exclude("d", keys, reason="x"))
                return
            version = self.root.exclude("d", keys, reason="x")
            self.published(version, {key: fields for key, fields in before.items() if key not in keys})

        @precondition(lambda self: self.newest())
        @rule()
        def exclude_a_stranger(self):
            properties.catch_error(SampleNotFound, lambda: self.root.exclude("d", ["nobody"], reason="x"))

        @precondition(lambda self: len(self.versions) > 2)
        @rule(data=st.data())
        def retire(self, data):
            number = data.draw(st.integers(1, len(self.versions)))
            self.root.retire(f"d@{number}", reason="x")
            self.retired.add(number)
            properties.catch_error(VersionRetired, lambda: self.root.open(f"d@{number}"))

        @precondition(lambda self: self.newest())
        @rule(name=st.sampled_from(["t1", "t2", "a1"]))
        def name(self, name):
            number = self.newest()
            move = self.root.alias if name.startswith("a") else self.root.tag
            if name.startswith("t") and self.refs.get(name, number) != number:
                properties.catch_error(Conflict, lambda: move(f"d@{number}", name))
                return
            move(f"d@{number}", name)
            self.refs[name] = number

        @rule()
        def another_process(self):
            """Everything is read again by a root that knows nothing yet."""
            self.root = loader.Root(self.url)

        def check(self, number):
            expected = self.versions[number - 1]
            for version in (self.root.open(f"d@{number}"), pickle.loads(pickle.dumps(self.root.open("d")))):  # noqa: S301
                assert properties.content(version) == expected
            frame = version.samples().collect()
            assert frame["key"].to_list() == version.keys(np.arange(len(version)))
            if "w" in frame.columns:
                for key, w in zip(frame["key"], frame["w"], strict=True):
                    assert w == self.metadata[key, int(expected[key]["cls"])]

        def teardown(self):
            if not hasattr(self, "versions"):
                return
            for number in range(1, len(self.versions) + 1):
                if number not in self.retired:
                    version = self.root.open(f"d@{number}")
                    assert properties.content(version) == self.versions[number - 1]
                    assert verify(self.root, f"d@{number}", full=True).problems == []
            for name, number in self.refs.items():
                if number not in self.retired:
                    assert self.root.open(f"d@{name}").number == number
            assert self.root.log.verify() == self.root.state

    return Dataset


def test_dataset_is_its_model(properties, at_scale):
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine(properties),
        settings=settings(
            max_examples=at_scale(6, 15), stateful_step_count=14, deadline=None, derandomize=True
        ),
    )
