"""What must hold when a world ends: every acknowledged change, nothing half visible, nothing left."""

import hashlib
import hmac
from typing import Any

from judge import checkpoints as judged
from judge.log import ENTRY, Broken, History, read_log

from loader.errors import PenstockError
from penstock.checkpoints import Checkpoints
from penstock.denied.record import condemned_versions
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.gc import Options, collect
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.takedown.takedown_run import run_takedown

from .actors import GRACE_S, SUBJECTS
from .truth import Violation
from .turns import HOUR_US
from .world import World


def end(world: World) -> None:
    """Raises: Violation."""
    world.faults.calm = True
    for bucket in (world.bucket, world.mirror):
        bucket.arrive(world.turns.true_us)
    try:
        judge_log(world)
        finish_takedowns(world)
        judge_root(world)
        judge_checkpoints(world)
        judge_mirror(world)
        for one in list(world.held):
            if not one.actor.dead:
                world.looks_at(one.actor, one.version)
        everybody_goes(world)
        judge_what_is_left(world)
    except Broken as error:
        raise Violation(f"the judge: {error}") from error
    except PenstockError as error:
        raise Violation(f"with all faults gone: {type(error).__name__}: {error}") from error


def judge_log(world: World) -> History:
    """The log is whole, and has everything that was acknowledged."""
    history = read_log(world.bucket.bytes())
    for n in history.denies:
        entry = history.entries[n - 1]
        for subject in SUBJECTS:
            value = f"subject\0\0{subject}".encode()
            found = hmac.new(bytes.fromhex(entry["salt"]), value, hashlib.sha256).hexdigest()
            if found in entry["hashes"]:
                world.truth.denied[n] = subject
    for what, fields in world.truth.done:
        kind = {"deny": "deny", "retire": "retire", "ref": "ref", "hold": "hold"}[what]
        if not any(
            entry["kind"] == kind and all(entry[name] == value for name, value in fields.items())
            for entry in history.entries
        ):
            raise Violation(f"it was said that {what} {dict(fields)} was done, and the log does not have it")
    for change in world.truth.changes.values():
        if change.id and history.by_id(change.id) is None:
            raise Violation(f"{change.name} was published as {change.id}, and the log does not have it")
    return history


def finish_takedowns(world: World) -> None:
    """Whoever was killed in one does it again."""
    root = world.root()
    for deny in root.state.denies:
        run_takedown(root, deny.n, apply=True)
    root.close()


def judge_root(world: World) -> None:
    """Each version that must be there holds what it has to, byte for byte."""
    objects = world.bucket.bytes()
    history, reader = read_log(objects), world.reader_of(world.bucket)
    for record in kept_versions(world, history):
        found, _ = reader.content(record)
        expected = world.truth.expected(history, record)
        if found != expected:
            raise Violation(f"{record.dataset}@{record.number} holds {found}, and should hold {expected}")
    told: dict[str, str] = {}
    for record in history.every():
        name = world.truth.producers.get(record.sha256, {}).get("op", "")
        if name and told.setdefault(name, record.id) != record.id:
            raise Violation(f"{name} was published twice: {told[name]} and {record.id}")
        change = world.truth.changes.get(name)
        if change is not None and change.id not in ("", record.id):
            raise Violation(f"{name} was published as {record.id}, and its actor was told {change.id}")


def kept_versions(world: World, history: History) -> list[Any]:
    """Versions that nobody may have collected. Of those that a takedown has retired, holds alone keep any."""
    if not history.denies:
        return history.kept()
    held = {(dataset, number) for dataset, number, _ in history.holds}
    return [one for one in history.every() if not one.retired or (one.dataset, one.number) in held]


def judge_checkpoints(world: World) -> None:
    """Each checkpoint that policy keeps loads what was saved; one that is there is whole."""
    objects = world.bucket.bytes()
    there = judged.markers(objects)
    for (run, step), marker in there.items():
        data = judged.tensors(objects, marker)["weights"]
        if data not in world.truth.tried.get((run, step), []):
            raise Violation(f"step {step} of {run} holds what nobody saved")
    for (run, step), data in world.truth.saved.items():
        newest = max((other for name, other in there if name == run), default=-1)
        if (run, step) in there:
            if judged.tensors(objects, there[run, step])["weights"] != data:
                raise Violation(f"step {step} of {run} is not what was saved")
        elif newest <= step or world.keeps(run, step, newest):
            raise Violation(f"step {step} of {run} was saved and is gone; the newest is {newest}")


def judge_mirror(world: World) -> None:
    """A mirror that was brought up to date has the log, byte for byte, and what can be opened."""
    if not world.mirror.objects:
        return
    root = world.root()
    report = migrate(root, world.store(world.outside, world.mirror, world.mirror_url), Pace())
    if report.failures:
        raise Violation(f"the mirror lacks {report.failures}")
    here, there = world.bucket.bytes(), world.mirror.bytes()
    for key in (key for key in here if ENTRY.fullmatch(key)):
        if there.get(key) != here[key]:
            raise Violation(f"{key} is another one in the mirror")
    reader = world.reader_of(world.mirror)
    history = read_log(there)
    for record in history.every():
        if not record.retired and reader.content(record)[0] != world.truth.expected(history, record):
            raise Violation(f"{record.dataset}@{record.number} holds something else in the mirror")
    root.close()


def everybody_goes(world: World) -> None:
    """Nobody shows life any more; a collector whose clock is right looks until nothing is due."""
    for one in world.held:
        if not one.actor.dead:
            one.root.close()
    for actor in world.turns.actors:
        actor.dead = True
    world.held = []
    for run, facts in world.runs.items():
        import torch

        saves = Checkpoints(world.root(), run, **facts)
        newest = saves.latest()
        saves.save((newest.step if newest else 0) + 1, {"weights": torch.zeros(1)})
    root = world.root()
    for _ in range(4):
        ids = condemned_versions(root.store, root.state.denies)
        collect(root, Options(name="last", grace_s=GRACE_S, condemned=ids), apply=True)
        world.turns.true_us += 80 * HOUR_US
    root.close()


def judge_what_is_left(world: World) -> None:
    """Nothing but what versions need, and what the format says stays."""
    objects = world.bucket.bytes()
    history, reader = read_log(objects), world.reader_of(world.bucket)
    needed: set[str] = set()
    for record in kept_versions(world, history):
        found, keys = reader.content(record)
        needed |= keys
        if found != world.truth.expected(history, record):
            raise Violation(
                f"{record.dataset}@{record.number} holds something else after the last collection"
            )
    still = [txn for txn, one in history.txns.items() if one["status"] == "open"]
    if still:
        raise Violation(f"transactions {still} are open, and nobody works on them")
    there = {key for key in objects if key.startswith("data/")}
    if not history.denies and there != needed:
        raise Violation(f"nobody needs {sorted(there - needed)[:5]}, and it is left")
    left = [key for key in objects if key.startswith(("leases/", "heartbeats/"))]
    left += [key for key in objects if key.startswith("log/state-")][4:]
    left += sorted(judged.orphan_parts(objects))
    if left:
        raise Violation(f"{left[:5]} are left")
