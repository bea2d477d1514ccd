"""Worlds by the number: each made of its seed, judged, and told as a story where something was wrong."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from judge.log import Broken

from .determinism import make_deterministic
from .ending import end
from .faults import KINDS
from .truth import Violation
from .turns import Endless
from .world import World

KINDS_OF_WORK = {
    "publish": 10,
    "exclude": 4,
    "group": 3,
    "annotate": 3,
    "abandon": 2,
    "retire": 8,
    "tag": 1,
    "alias": 1,
    "hold": 1,
}


@dataclass
class Came:
    """What came of a world. violation: what was wrong, or ""."""

    seed: int
    violation: str
    world: World

    @property
    def counted(self) -> "Counter[str]":
        """What there was of it."""
        acknowledged = sum(outcome == "done" for *_, outcome in self.world.told)
        faults = Counter(kind for _, kind, _ in self.world.faults.seen)
        return Counter(
            worlds=1,
            requests=self.world.turns.step,
            acknowledged=acknowledged,
            failed=len(self.world.told) - acknowledged,
            faults=sum(faults.values()),
        ) + Counter({f"faults: {kind}": n for kind, n in faults.items()})

    def story(self) -> str:
        """For people: what was done, and what befell whom."""
        lines = [(n, f"{actor}: {what}: {outcome[:300]}") for n, actor, what, outcome in self.world.told]
        lines += [(n, f"[{kind}] {words}") for n, kind, words in self.world.faults.seen]
        return "\n".join(f"  {n:6d} {words}" for n, words in sorted(lines))


def run_world(seed: int, kinds: Collection[str] = KINDS, only: Collection[int] | None = None) -> Came:
    """Make the world of a seed, run it and judge it."""
    world = World(seed, kinds, only)
    violation = ""
    with make_deterministic(world):
        try:
            populate(world)
            world.turns.run()
            end(world)
        except Violation as error:
            violation = str(error)
        except Broken as error:
            violation = f"the judge: {error}"
        except Endless as error:
            violation = f"endless: {error}"
        finally:
            world.ends()
    return Came(seed, violation, world)


def populate(world: World) -> None:
    """A root with a version or two, and everybody who is in the world."""
    rng = Random(f"people {world.seed}")
    with world.alone():
        root = world.root()
        for n in range(rng.choice([1, 1, 2])):
            change = world.truth.begin("publish", "outside")
            change.samples = {f"first{n}-{i}": {"x": b"%d" % i, "column w": i} for i in range(3)}
            with root.write("d", producer={"op": change.name}) as writer:
                for i in range(3):
                    writer.add(f"first{n}-{i}", {"x": b"%d" % i}, {"w": i}, {"subject": "joe"})
            change.id = writer.version.id
        root.close()
    kinds, weights = zip(*KINDS_OF_WORK.items(), strict=True)
    takes_down = rng.random() < 0.08
    for _ in range(rng.choice([1, 2, 2, 3])):
        left = rng.choices(kinds, weights, k=rng.choice([2, 3, 4]))
        if takes_down:
            left[rng.randrange(len(left))], takes_down = "takedown", False
        world.add("worker", left=left, successors=2, mortal=True)
    for _ in range(rng.choice([1, 1, 2])):
        world.add(
            "reader", versions=rng.choice([1, 2]), reads=rng.choice([2, 3, 4]), successors=1, mortal=True
        )
    for name in ("a", "b")[: rng.choice([1, 1, 2])]:
        world.add("collector", name=name, looks=rng.choice([3, 5, 7]), successors=1, mortal=True)
    if rng.random() < 0.4:
        keep = rng.choice([{}, {"keep_last": 1}, {"keep_last": 2}, {"keep_last": 1, "keep_every": 2}])
        world.runs["run"] = keep
        for _ in range(rng.choice([1, 1, 2])):
            world.add("saver", run="run", keep=keep, saves=rng.choice([2, 4]), successors=2, mortal=True)
    if rng.random() < 0.15:
        world.add("migrator", runs=2, successors=1, mortal=True)


def smallest(came: Came, kinds: Collection[str] = KINDS) -> Came:
    """The same world with as few faults as it takes to go wrong in the same way."""
    alike = came.violation.partition(":")[0][:20]
    numbers = sorted({n for n, _, _ in came.world.faults.seen})
    best, size = came, max(1, len(numbers) // 2)
    while size:
        at = 0
        while at < len(numbers):
            fewer = numbers[:at] + numbers[at + size :]
            tried = run_world(came.seed, kinds, frozenset(fewer))
            if tried.violation.partition(":")[0][:20] == alike:
                numbers = sorted({n for n, _, _ in tried.world.faults.seen})
                best = tried
            else:
                at += size
        size //= 2
    return best
