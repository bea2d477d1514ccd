"""What the actors of interleavings do to a root, and what must hold whatever came of it.

A run of them is judged by the log alone: who wrote which entry is known, so the content of every version is that of
its parent after its writer's change, and what the log protects must be there byte for byte.
"""

import contextlib
import importlib.util
import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

from hypothesis import strategies as st

import loader
from loader.dataset.log.denies import Target
from loader.dataset.log.entries import entry_key
from loader.dataset.versions.version import Version
from loader.errors import ObjectNotFound, PenstockError
from penstock.denied.record import condemned_versions
from penstock.upkeep.gc import Moment, Options, collect
from penstock.upkeep.takedown.takedown_run import run_takedown
from penstock.upkeep.verify.root import verify_root


def sibling(name):
    """A module beside this one."""
    full = f"penstock_tests_dataset_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


properties, turns = sibling("properties"), sibling("turns")
_numbers = itertools.count()
WRITERS = ("write", "again", "group", "exclude", "retire", "tag", "abort")
KINDS = (*WRITERS, "annotate", "bring", "takedown", "hold", "alias", "read", "collect", "shared")
PUBLISH = ("write", "again", "group", "exclude", "abort", "annotate", "bring")
ALICE, SECRET = "alice", b"ZQALICEZQ"
HOUR_US = 3_600_000_000
HOURS = (10, 90, 170)
"""At which a collector looks, on its own clock; `begin_root` had looks at 0."""
SKEWS = (0, 9_000, -9_000)
"""Hours that the clocks of collectors are off, a year and more."""
FOREVER_S = 10.0**9
MOST = 2_000
"""Requests of an actor."""


def begin_root(runs):
    """A root with `runs` publishes, so that some next one merges tables; the first has a sample of alice's. Of three
    and more d@1 is retired, and condemned since the hour 0 of every collector."""
    root = loader.Root(f"memory://turns-{next(_numbers)}")
    for run in range(runs):
        with root.write("d", producer={"op": f"first{run}"}) as writer:
            writer.add(f"k{run}", {"x": b"%d" % run})
            if not run:
                writer.add("spare", {"x": b"s"})
                writer.add("hers", {"x": SECRET}, {}, {"subject": ALICE})
    if runs > 2:
        root.retire("d@1", reason="old")
    root.close()
    return loader.Root(root.url)


def looks(name, skew, grace_s, hours=HOURS):
    """A collector: several looks, at hours of its own clock, each of which deletes what is due."""

    def job(root):
        for hour in hours:
            options = Options(
                name=name,
                grace_s=grace_s,
                silence_s=FOREVER_S,
                condemned=condemned_versions(root.store, root.state.denies),
            )
            at = Moment(at_us=(hour + skew) * HOUR_US, run=name, run_us=hour * HOUR_US)
            report = collect(root, options, apply=True, at=at)
        return report

    return job


def reads(root):
    """Opens d@2 and the newest, reads both, and keeps them open; the second look at each is the test's."""
    seen = []
    for ref in ("d@2", "d"):
        with contextlib.suppress(loader.errors.VersionRetired):
            version = root.open(ref)
            seen.append((version, content(version)))
    return SimpleNamespace(seen=seen, root=root)


def take_alice_down(root):
    n = root.log.deny((Target(kind="subject", value=ALICE),), "ticket", "desk").n
    run_takedown(root, n, apply=True)
    return n


def job(kind, name, root, i, grace_s):
    """What an actor does: a function of the root as it sees it."""
    facts = {"op": name}
    if kind in ("write", "again", "abort", "bring"):
        txn = root.begin("d")
        rows = [("shared" if kind == "again" else name, {"x": name.encode()})]
        if kind == "bring":
            rows.append((f"{name}-hers", {"x": SECRET}, {}, {"subject": ALICE}))
        part = loader.write_part(root, txn, rows)
        if kind == "abort":  # a collector that takes the writer for dead
            root.abort(txn, "thought dead")
        return lambda root: root.publish("d", [part], producer=facts)
    labels = {"spare": {"label": name}}
    return {
        "group": lambda root: root.add_group("d", "g", {"t.txt": lambda sample: name}, producer=facts),
        "exclude": lambda root: root.exclude("d", ["k0"], reason=name, producer=facts),
        "annotate": lambda root: root.annotate("d", "labels", labels, author=name, producer=facts).version,
        "retire": lambda root: root.retire("d@2", reason=name),
        "tag": lambda root: root.tag("d@2", "good"),
        "alias": lambda root: [root.alias(ref, "prod") for ref in ("d@2", "d")],
        "hold": lambda root: root.hold("d@2", by=name, why="matter 7"),
        "takedown": take_alice_down,
        "read": reads,
        "collect": looks(name, SKEWS[i % 3], grace_s),
        "shared": looks("shared", 0, grace_s),
    }[kind]


def content(version):
    """key -> {field: bytes} of every live sample, and its label."""
    out = {}
    for key, fields in properties.content(version).items():
        out[key] = dict(fields)
    if "label" in version.manifest["columns"]:
        frame = version.samples().select("key", "label").collect()
        for key, label in zip(frame["key"], frame["label"], strict=True):
            if label is not None:
                out[key]["label"] = label
    return out


def effect(kind, name, before, base, denies):
    """What the next version holds, after takedowns or not. base: what the actor had open."""
    after = {key: dict(fields) for key, fields in before.items()}
    if kind == "group":
        for key in after.keys() & base.keys():
            after[key].setdefault("t.txt", name.encode())
    elif kind == "exclude":
        del after["k0"]
    elif kind == "annotate":
        after["spare"]["label"] = name
    elif kind != "takedown":
        key = "shared" if kind == "again" else name
        assert key not in before
        added = {f"{name}-hers": {"x": SECRET}} if kind == "bring" else {}
        after |= {key: {"x": name.encode()}, **added}
    return {
        key: fields for key, fields in after.items() if not denies or not (key == "hers" or "-hers" in key)
    }


class Ran:
    """What came of a run. wrote: log entry -> the actor that wrote it; root: as nobody has seen it."""

    def __init__(self, url, names, results, wrote, grace_s):
        self.names, self.results, self.grace_s = names, results, grace_s
        self.root = loader.Root(url)
        self.state = self.root.state
        entries = (self.root.store.get(entry_key(n)).data for n in range(1, self.state.n + 1))
        self.wrote = {n: wrote[data] for n, data in enumerate(entries, 1) if data in wrote}
        self.denied = condemned_versions(self.root.store, self.state.denies)

    @property
    def readers(self):
        """What those who read have open."""
        return [one for kind, one in self._of("read") if isinstance(one, SimpleNamespace)]

    def _of(self, *kinds):
        return [(kind, self.results[name]) for name, kind in self.names.items() if kind in kinds]

    def kept(self):
        """Records of the versions that must be there: who a takedown condemned is kept by holds alone."""
        state = self.state
        soft = {state.version(ref.dataset, ref.number).id for ref in state.refs.values()}
        soft |= {version.id for reader in self.readers for version, _ in reader.seen}
        hard = {state.version(hold.dataset, hold.number).id for hold in state.holds}
        return [
            one
            for one in state.versions("d")
            if one.retired is None or one.id in hard or (one.id in soft and one.id not in self.denied)
        ]

    def check(self, before):
        """before: number -> content, of the versions that were there first."""
        self.nobody_failed_who_must_not()
        model = self.every_commit_is_its_parents_content_changed(before)
        assert verify_root(self.root, full=True).problems == []
        assert self.root.log.verify() == self.state
        self.what_is_needed_is_there(model)
        collect(
            self.root,
            Options(name="last", grace_s=0, silence_s=FOREVER_S, condemned=self.denied),
            apply=True,
            now_us=0,
        )
        self.what_is_needed_is_there(model)
        self.nothing_taken_down_is_in_a_later_version()
        for reader in self.readers:
            reader.root.close()
        self.root.close()

    def nobody_failed_who_must_not(self):
        for name, result in self.results.items():
            assert not isinstance(result, Exception) or isinstance(result, PenstockError), (name, result)
            kind = self.names[name]
            if kind in ("collect", "shared"):
                assert not isinstance(result, Exception), (name, result)
            assert self._is_unsafe(kind) or not isinstance(result, ObjectNotFound), (name, result)

    def _is_unsafe(self, kind):
        """Without a lease, or past one as a takedown goes, a version's bytes are safe for a grace, and no longer."""
        others = {"retire"} if kind == "takedown" else {"retire", "takedown"}
        taken = self.denied if kind == "read" else others.intersection(self.names.values())
        return kind == "abort" or (not self.grace_s and bool(taken))

    def every_commit_is_its_parents_content_changed(self, before):
        """And whoever was told that it published did, under that number; whoever was told otherwise did not."""
        model, published = dict(before), {}
        for record in self.state.versions("d")[len(before) :]:
            who = self.wrote[record.n]
            assert self.names[who] == "takedown" or who not in published
            published[who] = record.number
            parent, base = (
                model[self.state.by_id(id).number] if id else {}
                for id in (record.parent, self.state.txns[record.txn].parent)
            )
            model[record.number] = effect(self.names[who], who, parent, base, record.denies)
        for name, kind in self.names.items():
            result = self.results[name]
            if kind in PUBLISH:
                told = None if isinstance(result, Exception) else result.number
                assert published.get(name) == told, (name, result)
                assert kind != "abort" or isinstance(result, Exception)
        return model

    def what_is_needed_is_there(self, model):
        for record in self.kept():
            found = content(Version.of_record(self.root.store, record))
            assert found == model[record.number], (record.name, found, model[record.number])
        for reader in self.readers:
            for version, seen in reader.seen:
                assert seen == model[version.number], version.name
                if version.id not in self.denied or self.state.by_id(version.id).retired is None:
                    assert content(version) == seen, version.name

    def nothing_taken_down_is_in_a_later_version(self):
        """In none of the bytes that it brings; and once a takedown ended, in none at all but those that are held."""
        first = self.state.denies[0].n if self.state.denies else self.state.n
        ended = any(isinstance(result, int) for _, result in self._of("takedown"))
        held = {(hold.dataset, hold.number) for hold in self.state.holds}
        for record in self.kept():
            rows = Version.of_record(self.root.store, record).parts.shard_rows().to_pylist()
            paths = {row["path"] for row in rows}
            if not ended or ("d", record.number) in held:
                paths = {one for one in paths if record.n > first and one.startswith(f"data/{record.txn}/")}
            for path in paths:
                assert SECRET not in self.root.store.get(path).data, (record.name, path)


def race_actors(kinds, choices, faults, runs, grace_s=0):
    """Run actors of these kinds request by request, and check what came of it. (what each gave or raised, whose each
    request was)."""
    root = begin_root(runs)
    before = {one.number: content(Version.of_record(root.store, one)) for one in root.state.versions("d")}
    names = {f"{kind}-{i}": kind for i, kind in enumerate(kinds)}
    jobs = {name: job(kind, name, root, i, grace_s) for i, (name, kind) in enumerate(names.items())}
    for i, (name, kind) in enumerate(names.items()):
        if kind in ("collect", "shared"):
            looks(name if kind == "collect" else "shared", SKEWS[i % 3], grace_s, hours=(0,))(root)
    running = turns.Turns(choices, faults)
    results = running.run(root.url, jobs)
    Ran(root.url, names, results, running.wrote, grace_s).check(before)
    return results, running.taken


def draw_race(*run, **options):
    """What each actor gave or raised, see `race_actors`."""
    return race_actors(*run, **options)[0]


def interrupt_everywhere(kinds, runs=3, grace_s=0, start=1, step=1):
    """The first actor makes k requests, then the others run to their ends, one after the other, then it goes on: for
    every `step`-th k until it has no more. Yields each k, done."""
    names = [f"{kind}-{i}" for i, kind in enumerate(kinds)]
    for k in itertools.count(start, step):
        choices = [names[0]] * k + [name for name in names[1:] for _ in range(MOST)]
        _, taken = race_actors(kinds, choices, 0, runs, grace_s)
        yield k
        if taken.count(names[0]) <= k:
            return


def bursts(pairs):
    """(actor, how many requests it makes in a row), for ever round."""
    for actor, n in itertools.cycle(pairs):
        yield from itertools.repeat(actor, n)


@st.composite
def runs(draw):
    """Arguments of `draw_race`."""
    return {
        "kinds": draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=4)),
        "choices": bursts(
            draw(
                st.lists(
                    st.tuples(st.integers(0, 5), st.sampled_from([1, 1, 2, 3, 5, 8, 13, 30, 60])),
                    min_size=1,
                    max_size=30,
                )
            )
        ),
        "faults": draw(st.integers(0, 3)),
        "runs": draw(st.sampled_from([2, 3, 7])),
        "grace_s": draw(st.sampled_from([0, 72 * 3600])),
    }
