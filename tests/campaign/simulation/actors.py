"""What actors do: publishers, readers, collectors, savers of checkpoints, and who takes samples down."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import loader
from loader.dataset.log.denies import Target
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.errors import StoreError
from penstock.checkpoints import Checkpoints
from penstock.denied.record import condemned_versions
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.gc import Options, collect
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.takedown.takedown_run import run_takedown

from .truth import Content, Violation
from .turns import Actor

GRACE_S = 72 * 3600.0
MOST_LOOKS = 12
SUBJECTS = ("ann", "bob", "eve")


def version_content(version: Any) -> Content:
    """key -> {field: bytes} of every live sample, as a training reads it."""
    found: Content = {}
    for group in sorted(version.manifest["groups"]):
        fields = sorted(version.manifest["groups"][group]["field_nbytes"])
        view = version.select(*fields, where_present=True)
        at = view.version_ordinals(np.arange(len(view), dtype=np.int64))
        addresses = version.address(at, fields)
        for address, data in zip(addresses, read_fields(version.store, addresses), strict=True):
            found.setdefault(address.key, {}).update({name: bytes(one) for name, one in data.items()})
    return found


# publishers


def publish(world: Any, actor: Actor, root: loader.Root) -> None:
    """Parts of one transaction; asked again where the store failed, as a retry of a step does."""
    rng, n = actor.rng, world.number()
    parts = []
    change = world.truth.begin("publish", actor.name)
    for p in range(rng.choice([1, 1, 1, 2])):
        for i in range(rng.choice([1, 2, 3])):
            key = f"k{n}-{p}-{i}"
            change.samples[key] = {"x": f"{change.name} {i} {rng.random()}".encode(), "column w": n}
            change.subjects[key] = rng.choice(SUBJECTS)
    world.truth.subjects |= change.subjects
    txn = root.begin("d")
    with root.heartbeat(txn):
        for p in sorted({key.split("-")[1] for key in change.samples}):
            mine = [key for key in change.samples if key.split("-")[1] == p]
            rows = [
                (key, {"x": change.samples[key]["x"]}, {"w": n}, {"subject": change.subjects[key]})
                for key in mine
            ]
            parts.append(loader.write_part(root, txn, rows, name=p))
            if rng.random() < 0.1:  # an attempt that is lost
                loader.write_part(root, txn, rows, name=p)
        for _ in range(rng.choice([1, 2, 3])):
            try:
                change.id = root.publish("d", parts, producer={"op": change.name}).id
                break
            except StoreError as error:
                change.error = str(error)
        else:
            change.id = root.publish("d", parts, producer={"op": change.name}).id
    if rng.random() < 0.3:
        world.is_seen(actor, change)


def open_newest(world: Any, actor: Actor, root: loader.Root) -> tuple[Any, list[str]]:
    """(the newest version, its keys)."""
    version = root.open("d")
    return version, sorted(version.keys(np.arange(len(version))))


def exclude(world: Any, actor: Actor, root: loader.Root) -> None:
    version, keys = open_newest(world, actor, root)
    if len(keys) > 1:
        change = world.truth.begin("exclude", actor.name, base=version.id, keys=(actor.rng.choice(keys),))
        made = root.exclude("d", list(change.keys), reason="blurred", producer={"op": change.name})
        change.id = made.id


def group(world: Any, actor: Actor, root: loader.Root) -> None:
    version = root.open("d")
    change = world.truth.begin("group", actor.name, base=version.id)
    change.label = change.name
    made = root.add_group(version.id, "g", {"t.txt": lambda _: change.label}, producer={"op": change.name})
    change.id = made.id


def annotate(world: Any, actor: Actor, root: loader.Root) -> None:
    version, keys = open_newest(world, actor, root)
    some = tuple(actor.rng.sample(keys, min(len(keys), 2)))
    change = world.truth.begin("annotate", actor.name, base=version.id, keys=some)
    change.label = change.name
    rows = {key: {"label": change.label} for key in some}
    made = root.annotate(version.id, "labels", rows, author=actor.name, producer={"op": change.name})
    change.id = made.version.id


def abandon(world: Any, actor: Actor, root: loader.Root) -> None:
    """A transaction that nobody ends."""
    txn = root.begin("d")
    with root.heartbeat(txn):
        loader.write_part(root, txn, [(f"lost-{world.number()}", {"x": b"lost"}, {"w": 0})])
    if actor.rng.random() < 0.3:
        root.abort(txn, "given up")


# names


def some_version(actor: Actor, root: loader.Root, *, older: bool = False) -> Any:
    every = root.state.versions("d")
    if not every:
        raise Violation(f"{actor.name} finds no version, and there was one before it came")
    there = [one for one in every if one.retired is None] or list(every)
    return actor.rng.choice(there[:-1] if older and len(there) > 1 else there)


def retire(world: Any, actor: Actor, root: loader.Root) -> None:
    one = some_version(actor, root, older=actor.rng.random() < 0.9)
    root.retire(one.name, reason="old")
    world.truth.done.append(("retire", {"number": one.number}))


def tag(world: Any, actor: Actor, root: loader.Root) -> None:
    one, name = some_version(actor, root), f"tag{world.number()}"
    root.tag(one.name, name)
    world.truth.done.append(("ref", {"number": one.number, "name": name}))


def alias(world: Any, actor: Actor, root: loader.Root) -> None:
    one = some_version(actor, root)
    root.alias(one.name, "prod")
    world.truth.done.append(("ref", {"number": one.number, "name": "prod"}))


def hold(world: Any, actor: Actor, root: loader.Root) -> None:
    one = some_version(actor, root)
    root.hold(one.name, by=actor.name, why="a matter")
    world.truth.done.append(("hold", {"number": one.number, "by": actor.name}))


def takedown(world: Any, actor: Actor, root: loader.Root) -> None:
    subject = actor.rng.choice(SUBJECTS)
    n = root.log.deny((Target(kind="subject", value=subject),), "a request", "desk").n
    world.truth.done.append(("deny", {"n": n}))
    run_takedown(root, n, apply=True)


WORK: Mapping[str, Callable[[Any, Actor, loader.Root], None]] = {
    "publish": publish,
    "exclude": exclude,
    "group": group,
    "annotate": annotate,
    "abandon": abandon,
    "retire": retire,
    "tag": tag,
    "alias": alias,
    "hold": hold,
    "takedown": takedown,
}


def worker(world: Any, actor: Actor) -> None:
    """One thing after the other."""
    root = world.root(actor)
    while actor.facts["left"]:
        kind = actor.facts["left"].pop(0)
        if actor.rng.random() < 0.3:
            root = world.root(actor)
        world.attempt(actor, kind, lambda kind=kind, root=root: WORK[kind](world, actor, root))
        if actor.rng.random() < 0.3:
            world.turns.sleep(actor, actor.rng.choice([1, 10, 50]))


# readers


def reader(world: Any, actor: Actor) -> None:
    """Opens versions and reads them from time to time; some go on to the end of the world."""
    for _ in range(actor.facts["versions"]):
        root = world.root(actor)
        found: list[Any] = []
        world.attempt(
            actor,
            "open",
            lambda root=root, found=found: found.append(
                root.open(some_version(actor, root, older=True).name)
            ),
        )
        if not found:
            world.turns.sleep(actor, 5)
            continue
        world.reads(actor, root, found[0])
        for _ in range(actor.facts["reads"]):
            if actor.rng.random() < 0.5 and world.faults.has("stalls"):
                world.falls_asleep(actor)
            else:
                world.turns.sleep(actor, actor.rng.choice([1, 20, 60, 100]))
            if not world.looks_at(actor, found[0]):
                return
        if actor.rng.random() < 0.5:
            return  # what it has open stays so
        world.closes(actor, root)


# collectors


def collector(world: Any, actor: Actor) -> None:
    """Looks, and deletes what is due, on a clock that may jump."""
    for number in range(MOST_LOOKS):
        if number >= actor.facts["looks"] and not world.is_anybody_asleep():
            return
        world.clock_jumps(actor)
        root = world.root(actor)

        def look(root: loader.Root = root) -> None:
            ids = condemned_versions(root.store, root.state.denies)
            options = Options(name=actor.facts["name"], grace_s=GRACE_S, condemned=ids)
            collect(root, options, apply=True)

        world.begins_look(actor)
        world.attempt(actor, "look", look)
        world.ends_look(actor)
        world.turns.sleep(actor, actor.rng.choice([0.003, 5, 73, 76, 80]))


# checkpoints


def saver(world: Any, actor: Actor) -> None:
    """Saves steps of a run, as a training that was started again does: from the newest on."""
    run, keep = actor.facts["run"], actor.facts["keep"]
    for _ in range(actor.facts["saves"]):
        checkpoints = Checkpoints(world.root(actor), run, **keep)
        world.attempt(actor, "save", lambda one=checkpoints: save(world, actor, one))
        if actor.rng.random() < 0.5:
            world.turns.sleep(actor, actor.rng.choice([1, 3]))


def save(world: Any, actor: Actor, checkpoints: Checkpoints) -> None:
    newest = checkpoints.latest()
    step = (newest.step if newest else 0) + actor.rng.choice([1, 1, 2])
    tensor = torch.tensor([world.number(), step, actor.rng.randrange(1000)], dtype=torch.int64)
    data = tensor.numpy().tobytes()
    world.truth.tried.setdefault((checkpoints.run, step), []).append(data)
    checkpoints.save(step, {"weights": tensor, "lr": 0.5})
    world.truth.saved[checkpoints.run, step] = data


# mirrors


def migrator(world: Any, actor: Actor) -> None:
    """Brings a mirror up to date."""
    for _ in range(actor.facts["runs"]):
        target = world.store(actor, world.mirror, world.mirror_url)
        world.attempt(actor, "migrate", lambda target=target: migrate(world.root(actor), target, Pace()))
        world.turns.sleep(actor, actor.rng.choice([1, 40]))


JOBS: Mapping[str, Callable[[Any, Actor], None]] = {
    "worker": worker,
    "reader": reader,
    "collector": collector,
    "saver": saver,
    "migrator": migrator,
}
