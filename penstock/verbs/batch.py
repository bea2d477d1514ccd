"""`penstock batch WHERE`: a step of a training with its proofs, as text or JSON, and its values as files."""

from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import InvalidRuntime

from .verb import Answer, Verb, add_world
from .view import add_metrics, add_recipe, metrics_of

if TYPE_CHECKING:
    from loader.run.replay import Functions

    from ..view.replays.replays import Replayers
    from ..view.replays.training import Training


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("where", help="run@step, run, plan hash or state file")
    parser.add_argument("--step", type=int, default=None, help="global step")
    parser.add_argument("--slot", type=int, default=None, help="one slot of the global batch")
    parser.add_argument(
        "--save",
        type=Path,
        default=None,
        metavar="DIR",
        help="folder for the values, as PNG, WAV, NPY and JSON",
    )
    add_recipe(parser)
    add_metrics(parser)
    add_world(parser)


def run(arguments: Namespace) -> Answer:
    """Return a rank's part of a step, or one slot of it."""
    from ..view.inspect.recorded_step import told_by_trail
    from ..view.replays.recipe_process import RecipeProcess
    from ..view.replays.replays import Replayers, Replays
    from ..view.replays.training import Training, where

    root = loader.Root(arguments.root)
    name, told = where(root, arguments.where)
    step = told if arguments.step is None else arguments.step
    if step is None:
        raise InvalidRuntime(f"which step of {name}? Pass {name}@STEP, or --step")
    metrics = metrics_of(root, arguments.where, arguments.metrics)
    training = Training(root, name, metrics=metrics.get(name))
    recipe = RecipeProcess(root, arguments.recipe) if arguments.recipe else None
    plain = Replays(root, cut=arguments.save is None)
    replayers = Replayers(plain=plain, recipe=recipe)
    try:
        with told_by_trail(training, step, arguments.slot):
            shown, text, saved = _looked(arguments, training, replayers, step)
    finally:
        replayers.close()
        training.close()
    body = shown.to_json()
    if arguments.save is not None:
        from ..view.saving import save

        try:
            body["saved"] = [str(path) for path in save(arguments.save, body, saved)]
        except OSError as error:
            raise InvalidRuntime(
                f"--save {arguments.save}: {error}; pass a folder that can be made, or written to"
            ) from error
        text += f"\n{len(body['saved'])} files in {arguments.save}"
    return body, text, 0


def _looked(
    arguments: Namespace, training: "Training", replayers: "Replayers", step: int
) -> tuple[Any, str, dict[int, Any]]:
    """Return the record, its text, and slot -> values that --save writes."""
    from loader.run.trail.read_trail import trail_runs
    from loader.storage.mirror.store import primary_of

    from ..view.inspect.plain_text import slot_text, step_text
    from ..view.inspect.shown_batch import shown_batch
    from ..view.inspect.slot_record import slot_record, slot_values
    from ..view.inspect.step_record import part_of, step_record, step_values, whole_values
    from ..view.replays.replayed_values import slot_itself
    from ..view.samples.held_steps import AskedRuns

    plain_batch = partial(shown_batch, n_pictured=0)
    if arguments.slot is not None:
        values, trouble = slot_values(training, replayers, step, arguments.slot, slot_itself)
        of_slot = slot_record(
            training,
            values,
            trouble,
            AskedRuns(others=trail_runs(primary_of(training.root.store))),
            functions=_functions(training, replayers, step, trouble),
            part=lambda rank, world: step_values(training, replayers, step, rank, world, plain_batch),
        )
        return of_slot, slot_text(of_slot), {values.slot: values.trained or values.decoded}
    rank, world_size = part_of(training, step, arguments.rank, arguments.world)
    part = training, replayers, step, rank, world_size
    saved: dict[int, Any] = {}
    if arguments.save is None:
        seen, trouble = step_values(*part, plain_batch)
    else:
        batch, trouble = whole_values(*part)
        seen = shown_batch(training.plan(step), batch, n_pictured=0)
    shown = step_record(training, seen, _functions(training, replayers, step, trouble), trouble)
    if arguments.save is not None:
        saved = {row.slot: batch.slots[row.slot - batch.first_slot] for row in shown.slots}
    return shown, step_text(shown), saved


def _functions(training: "Training", replayers: "Replayers", step: int, trouble: str) -> "Functions | None":
    """Return facts of the recipe's functions; None without a recipe, or where it failed."""
    if replayers.recipe is None or trouble:
        return None
    return replayers.recipe.functions(training.setting(step, recipe=True))


VERB = Verb(text="a step of a training: samples, proofs and marks", run=run, arguments=arguments)
