"""A world: who is in it, how time passes, and what is noted of what happens."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from judge.log import read_log
from judge.version import Reader

import loader
from loader.dataset.log import leases as renewal
from loader.errors import (
    Changed,
    Corrupt,
    ObjectNotFound,
    PenstockError,
    Throttled,
    Transient,
    VersionNotFound,
)

from .actors import GRACE_S, JOBS, version_content
from .bucket import Bucket
from .faults import KINDS, Faults
from .pulse import Pulse, due
from .store import ActorStore
from .truth import Content, Truth, Violation
from .turns import HOUR_US, Actor, Killed, Turns

URL, MIRROR_URL = "memory://campaign", "memory://campaign-mirror"
SILENCE_US = 72 * HOUR_US
JUMPS_H = (0.1, 1, 24, 75, 200, 700, 1000, -0.1, -2, -100, -800)
ASLEEP_H = 300


@dataclass(frozen=True, eq=False)
class Held:
    """What a reader has open: what it holds, and the keys of every object of it."""

    actor: Actor
    root: loader.Root
    version: Any
    content: Content
    keys: frozenset[str]


class World:
    """seed: what it is made from; kinds: faults; only: numbers of the requests that may be befallen, None for all."""

    def __init__(
        self, seed: int, kinds: Collection[str] = KINDS, only: Collection[int] | None = None
    ) -> None:
        self.seed, self.turns, self.truth = seed, Turns(seed), Truth()
        self.faults = Faults(seed, kinds, only)
        self.bucket, self.mirror, self.mirror_url = Bucket(), Bucket(), MIRROR_URL
        self.rng, self._tokens = Random(f"world {seed}"), Random(f"tokens {seed}")
        self.store_tells_time = self.rng.random() < 0.5
        self.over, self.has_takedowns = False, False
        self.trace: list[tuple[int, str, str, str]] = []
        self.told: list[tuple[int, str, str, str]] = []
        self.never_missed: set[str] = set()
        self.held: list[Held] = []
        self.runs: dict[str, dict[str, int]] = {}
        self._roots: list[loader.Root] = []
        self._numbers = 0
        self._owners: dict[str, Actor] = {}
        self._beaten: set[str] = set()
        self._retired: list[tuple[int, frozenset[str]]] = []
        self.outside = Actor("outside", "outside", lambda _: None, Random(f"outside {seed}"))

    # what stands for the machine: see `determinism`

    def now_us(self) -> int:
        """What the clock says to whose turn it is."""
        self.turns.true_us += 1
        return self.turns.true_us + (self.turns.current.offset_us if self.turns.current else 0)

    def monotonic_s(self) -> float:
        """A clock that nobody puts right."""
        self.turns.true_us += 1
        return self.turns.true_us / 1e6

    def run_us(self) -> int:
        """The time since the machine of whose turn it is was started."""
        self.turns.true_us += 1
        return self.turns.true_us - (self.turns.current.booted_us if self.turns.current else 0)

    def boot(self) -> str:
        """The name of that run of the machine."""
        return f"run {self.turns.current.booted_us if self.turns.current else 0}"

    def slept(self) -> None:
        """Somebody waits a moment."""
        self.turns.true_us += 5_000
        for bucket in (self.bucket, self.mirror):
            bucket.arrive(self.turns.true_us)

    def token(self, nbytes: int) -> str:
        """Chance, hex."""
        return self._tokens.randbytes(nbytes).hex()

    def holder(self) -> str:
        """A name of the process whose turn it is."""
        return f"{(self.turns.current or self.outside).name}-{self.token(4)}"

    def pulse(self, beat: Callable[[], object], name: str, every_s: float) -> Pulse:
        """Stands for a thread that beats."""
        return Pulse(self, self.turns.current or self.outside, beat, every_s, name)

    def renew(self, one: Any) -> None:
        """Stands for the thread that renews leases."""
        actor = self.turns.current or self.outside
        if all(id(one) not in other.beats for other in self.turns.actors):
            Pulse(self, actor, one.beat, renewal.RENEW_EVERY_S, "lease", id(one))

    def stop_renewing(self, one: Any) -> None:
        """It is given back."""
        for actor in (*self.turns.actors, self.outside):
            actor.beats.pop(id(one), None)

    # who is in it

    def number(self) -> int:
        """A number that nobody had."""
        self._numbers += 1
        return self._numbers

    def store(self, actor: Actor, bucket: Bucket, url: str) -> Any:
        """A bucket, as an actor sees it."""
        return ActorStore(self, bucket, url, actor)

    def root(self, actor: Actor | None = None) -> loader.Root:
        """The root, as an actor that begins sees it. It is kept: who is collected by chance gives nothing back."""
        root = loader.Root(URL)
        root._use(self.store(actor or self.outside, self.bucket, URL))
        self._roots.append(root)
        return root

    def add(self, kind: str, **facts: Any) -> None:
        """A process; of those that may be killed another one comes and goes on."""
        name = f"{kind}{len(self.turns.actors)}"
        job = partial(self._lives, JOBS[kind])
        actor = Actor(name, kind, job, Random(f"{self.seed} {name}"), facts=facts)
        if self.faults.has("clocks"):
            actor.offset_us = int(actor.rng.choice([0, 0, 0.05, -0.05, 30, -300]) * HOUR_US)
        self.turns.add(actor)

    def _lives(self, job: Callable[[Any, Actor], None], actor: Actor) -> None:
        try:
            job(self, actor)
        except Killed:
            actor.dead = True
            if actor.facts.get("successors", 0) > 0:
                facts = {name: what for name, what in actor.facts.items() if name not in ("phase", "woken")}
                self.add(actor.kind, **{**facts, "successors": facts["successors"] - 1})
            raise

    def attempt(self, actor: Actor, what: str, call: Callable[[], object]) -> bool:
        """Whether it went well. Raises: Violation for an error that is none of the package's own."""
        outcome = "done"
        try:
            call()
        except PenstockError as error:
            outcome = f"{type(error).__name__}: {error}"
        except Exception as error:
            if actor.dead:
                raise Killed from None
            if type(error).__name__ != "CheckpointException":
                raise Violation(f"{actor.name}, {what}: a bare {type(error).__name__}: {error}") from error
            outcome = f"{type(error).__name__}: {error}"
        self.told.append((self.turns.step, actor.name, what, outcome))
        return outcome == "done"

    def is_seen(self, actor: Actor, change: Any) -> None:
        """Whoever comes after a publish was acknowledged finds its version. Raises: Violation."""
        try:
            self.root(actor).record(change.id, retired=True)
        except VersionNotFound as error:
            raise Violation(
                f"{change.name} was published as {change.id}, and is not found: {error}"
            ) from error

    # readers

    def reads(self, actor: Actor, root: loader.Root, version: Any) -> None:
        """A reader has it open from now on. Raises: Violation where it is not whole."""
        found = self.looked(version)
        if found is None:
            raise Violation(f"{actor.name} opened {version.name}, and it cannot be read")
        self.held.append(Held(actor, root, version, found, self.needs(version.id)))

    def closes(self, actor: Actor, root: loader.Root) -> None:
        """It is given back."""
        self.held = [one for one in self.held if one.root is not root]
        root.close()

    def looked(self, version: Any) -> Any:
        """What it holds, where nothing goes wrong on the way; None where that is not there."""
        with self.alone():
            try:
                return version_content(version)
            except PenstockError:
                return None

    def is_whole(self, held: "Held") -> bool:
        """Whether every object of what a reader has open is there."""
        return held.keys <= self.bucket.objects.keys()

    def looks_at(self, actor: Actor, version: Any) -> bool:
        """Whether the reader still has what it opened. Raises: Violation where it has to."""
        (held,) = [one for one in self.held if one.actor is actor and one.version is version]
        found: Any = None
        with suppress(Throttled, Transient):
            try:
                found = version_content(version)
            except (Corrupt, ObjectNotFound, Changed):
                found = self.looked(version)
        found = self.looked(version) if found is None else found
        if found == held.content and self.is_whole(held):
            return True
        if not self.may_lose(actor):
            raise Violation(
                f"{actor.name} has {version.name} open, its lease is alive, and bytes of it are gone"
            )
        self.held.remove(held)
        return False

    def may_lose(self, actor: Actor) -> bool:
        """Whether a lease of this reader was silent for long, or a takedown passes it."""
        return actor.slept_us >= SILENCE_US // 3 or self.has_takedowns

    def falls_asleep(self, actor: Actor) -> None:
        """A reader shows no life for long, unless a collector's look wakes it before the last look."""
        before = actor.slept_us
        actor.facts["asleep"] = True
        self.turns.stall(actor, ASLEEP_H)
        actor.facts["asleep"] = False
        if not actor.facts.pop("woken", False):
            self.shows_life(actor)
            looking = any(one.facts.get("phase") for one in self.turns.actors)
            if looking or not all(self.is_whole(one) for one in self.held if one.actor is actor):
                return  # it is too late, or may be
        actor.slept_us = before

    def shows_life(self, actor: Actor) -> None:
        """A reader renews its leases now."""
        with self.alone():
            for one in self.held:
                if one.actor is actor:
                    one.root.renew_leases()
                    self.never_missed.add(one.root._lease.key)
                    self.faults.flipped.add(one.root._lease.key)

    def is_anybody_asleep(self) -> bool:
        """Whether a reader shows no life, and may do so again."""
        return any(one.facts.get("asleep") and not one.dead for one in self.turns.actors)

    def wake(self, asleep: Collection[Actor], doomed: set[str]) -> None:
        """Readers whose versions are there, and about to be deleted, show life again: from now on they are safe."""
        for actor in asleep:
            mine = [one for one in self.held if one.actor is actor]
            if doomed.isdisjoint(one.version.manifest["txn"] for one in mine):
                continue
            if not all(map(self.is_whole, mine)):
                continue
            actor.facts.update(asleep=False, woken=True)
            actor.stalled, actor.not_before_us = False, self.turns.true_us
            self.told.append((self.turns.step, actor.name, "wakes", "done"))
            self.shows_life(actor)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else's turn comes, and nothing goes wrong."""
        before = self.turns.beating, self.faults.calm
        self.turns.beating = self.faults.calm = True
        try:
            yield
        finally:
            self.turns.beating, self.faults.calm = before

    # what the store tells

    def uploads(self, key: str, data: bytes) -> None:
        """Somebody is about to write; the manifests of versions are needed when they are gone."""
        if "/manifest-" in key:
            self.truth.producers[hashlib.sha256(data).hexdigest()] = json.loads(data)["producer"]

    def created(self, actor: Actor, bucket: Bucket, key: str, data: bytes) -> None:
        """There is a new object."""
        if bucket is not self.bucket or not key.startswith("log/0"):
            return
        entry = json.loads(data)
        if entry["kind"] == "deny":
            self.has_takedowns = True
        elif entry["kind"] == "retire" and not self.has_takedowns:
            self._retired.append((self.turns.true_us, self.needs(entry["id"])))
        elif entry["kind"] == "abort" and actor.kind == "collector":
            owner = self._owners.get(entry["txn"])
            beaten = f"heartbeats/{entry['txn']}.json" in self._beaten
            if owner is not None and beaten and not owner.dead and owner.slept_us < SILENCE_US // 3:
                raise Violation(f"{actor.name} aborts the transaction of {owner.name}, which shows life")

    def wrote(self, actor: Actor, bucket: Bucket, key: str) -> None:
        """A write was acknowledged."""
        if bucket is not self.bucket:
            return
        if key.startswith("heartbeats/"):
            self._beaten.add(key)
        if key.endswith("/plan.parquet") and actor.facts.get("phase") == "looks":
            actor.facts["phase"] = "planned"
            asleep = [one for one in self.turns.actors if one.facts.get("asleep") and not one.dead]
            if asleep and all(one.facts.get("phase") != "sweeps" for one in self.turns.actors):
                self.wake(asleep, due(bucket.objects[key].data))

    def lists(self, actor: Actor, bucket: Bucket, prefix: str) -> None:
        """Something is listed."""
        if bucket is self.bucket and prefix == "leases/" and actor.facts.get("phase") == "planned":
            actor.facts["phase"] = "sweeps"

    def before_delete(self, actor: Actor, bucket: Bucket, keys: Collection[str]) -> None:
        """Something is about to be deleted. Raises: Violation for what was retired a moment ago, by any clock."""
        jumped = any(kind == "clocks" for _, kind, _ in self.faults.seen)
        if actor.kind != "collector" or bucket is not self.bucket or jumped or self.has_takedowns:
            return
        for retired_us, theirs in self._retired:
            if self.turns.true_us - retired_us < GRACE_S * 1e6 and not theirs.isdisjoint(keys):
                key = min(theirs.intersection(keys))
                raise Violation(f"{actor.name} deletes {key} before the grace of its version has passed")

    # collectors

    def clock_jumps(self, actor: Actor) -> None:
        """Somebody puts a collector's clock right, or wrong."""
        number = self.turns.step
        rng = Random(f"{self.seed} clock {number}")
        if self.faults.has("clocks") and self.faults.may(number) and rng.random() < self.faults.p_clock:
            hours = rng.choice(JUMPS_H)
            actor.offset_us += int(hours * HOUR_US)
            again = ""
            if not actor.booted_us and rng.random() < 0.3:
                actor.booted_us, again = self.turns.true_us, ", and its machine is started again"
            self.faults.note(number, "clocks", f"{actor.name}: its clock is put {hours:g} h on{again}")

    def begins_look(self, actor: Actor) -> None:
        """Its plan is not there yet."""
        actor.facts["phase"] = "looks"

    def ends_look(self, actor: Actor) -> None:
        """It deletes nothing any more."""
        actor.facts["phase"] = ""

    def keeps(self, run: str, step: int, newest: int) -> bool:
        """Whether the policy of a run keeps a step, whatever else was committed up to the newest."""
        keep = self.runs[run]
        last, every = keep.get("keep_last"), keep.get("keep_every")
        return last is None or step == newest or bool(every and step % every == 0)

    def needs(self, id: str) -> frozenset[str]:
        """The keys of every object that a version is made of, as the judge reads it. Raises: Broken."""
        objects = self.bucket.bytes()
        record = read_log(objects).by_id(id)
        assert record is not None
        return frozenset(Reader(objects).content(record)[1])

    def reader_of(self, bucket: Bucket) -> Reader:
        """What the judge reads by."""
        return Reader(bucket.bytes())

    def ends(self) -> None:
        """Whatever is left of it asks for nothing any more."""
        self.over = True
        for root in self._roots:
            root._lease.begin_anew()
