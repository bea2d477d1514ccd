"""`penstock batch|explain|seen`: samples of a step, their provenance, and the steps of a sample."""

from argparse import Namespace
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import InvalidRuntime

from .verb import WORLD, Answer, Table, argument, flag, verb
from .view import METRICS, RECIPE, read_metrics, recipe_process

if TYPE_CHECKING:
    from loader.api.explain import Explanation

    from ..view.replays.replays import Replayers
    from ..view.replays.training import Training


@verb(
    "show a step of a training: samples, proofs and warnings",
    argument("where", "run@step, run, plan hash or state file"),
    argument("--step", "global step", type=int),
    argument("--slot", "one slot of the global batch", type=int),
    argument("--save DIR", "folder for the values, as PNG, WAV, NPY and JSON", type=Path),
    RECIPE,
    METRICS,
    *WORLD,
)
def run_batch(arguments: Namespace) -> Answer:
    """Return a rank's part of a step, or one slot."""
    from ..view.inspect.recorded_step import attach_recorded_step
    from ..view.replays.replays import Replayers, Replays
    from ..view.replays.training import Training, resolve_run_step

    root = loader.Root(arguments.root)
    name, at = resolve_run_step(root, arguments.where)
    step = at if arguments.step is None else arguments.step
    if step is None:
        raise InvalidRuntime(f"a step of {name} is needed: pass {name}@STEP, or --step")
    metrics = read_metrics(root, arguments.where, arguments.metrics)
    # Saved values are whole; shown ones are cut to what a screen holds.
    plain = Replays(root, cut=arguments.save is None)
    with (
        recipe_process(root, arguments.recipe) as recipe,
        closing(Replayers(plain=plain, recipe=recipe, is_strict=True)) as replayers,
        closing(Training(root, name, metrics=metrics.get(name))) as training,
        attach_recorded_step(training, step, arguments.slot),
    ):
        shown, text, saved = _step_or_slot(arguments, training, replayers, step)
    body = shown.to_json()
    if arguments.save is not None:
        from ..view.shown_values import save

        try:
            body["saved"] = [str(path) for path in save(arguments.save, body, saved)]
        except OSError as error:
            raise InvalidRuntime(
                f"--save {arguments.save}: {error}; pass a folder that can be created or written to"
            ) from error
        text += f"\n{len(body['saved'])} files in {arguments.save}"
    return body, text, 0


def _step_or_slot(
    arguments: Namespace, training: "Training", replayers: "Replayers", step: int
) -> tuple[Any, str, dict[int, Any]]:
    """Return (record, its text, slot -> values for --save)."""
    from loader.run.trail.read_trail import trail_runs
    from loader.storage.mirror import primary_store

    from ..view.inspect.sample_slices import SliceSearch
    from ..view.inspect.shown_batch import batch_and_samples, show_batch
    from ..view.inspect.slot_record import slot_record, slot_values
    from ..view.inspect.step_record import functions, part_of, step_record, step_values
    from ..view.replays.replayed_values import slot_itself
    from ..view.sample_relations import RunSearch
    from ..view.sections.characters.section_lines import page_text
    from ..view.sections.sample import SampleMedia
    from ..view.sections.slot import slot_sections
    from ..view.sections.step import step_sections

    # Text has no images, so none is encoded as a thumbnail.
    plain_batch = partial(show_batch, n_pictured=0)
    if arguments.slot is not None:
        values, trouble = slot_values(training, replayers, step, arguments.slot, slot_itself)
        of_slot = slot_record(
            training,
            values,
            trouble,
            RunSearch(others=trail_runs(primary_store(training.root.store))),
            SliceSearch(training.root),
            functions=functions(training, replayers, step, trouble),
            part=lambda rank, world: step_values(training, replayers, step, rank, world, plain_batch),
        )
        text = page_text(slot_sections(of_slot, SampleMedia()))
        if of_slot.runs_left:
            text += "\npenstock seen RUN SOURCE KEY searches one of the other runs for the sample"
        return of_slot, text, {values.slot: values.trained or values.decoded}
    rank, world_size = part_of(training, step, arguments.rank, arguments.world)
    # A rank reads only its part of the step: a whole batch may have thousands of samples.
    part = training, replayers, step, rank, world_size
    saved: dict[int, Any] = {}
    if arguments.save is None:
        batch, trouble = step_values(*part, plain_batch)
    else:
        (batch, saved), trouble = step_values(*part, batch_and_samples)
    shown = step_record(training, batch, functions(training, replayers, step, trouble), trouble)
    return shown, page_text(step_sections(shown)), {row.slot: saved[row.slot] for row in shown.slots if saved}


@verb(
    "trace a step of a run or plan to its bytes, raw objects and Dagster runs",
    argument("where", "run@step, run, hash of a saved plan (penstock plans ls) or state file"),
    argument("--step", "global step; needed unless WHERE is run@step", type=int),
    argument("--slot", "one slot, counted from 0", type=int),
    argument("--ui URL", "Dagster's webserver, to print links to runs", default=""),
    RECIPE,
    *WORLD,
)
def run_explain(arguments: Namespace) -> Answer:
    """Return a step's provenance, the pipeline runs that made its samples, and who excluded them since."""
    from ..lineage import pipeline_runs
    from ..upkeep.excluded_since import find_exclusions, plan_slices
    from ..view.replays.replayed_values import Setting
    from ..view.replays.training import Training, resolve_run_step

    root = loader.Root(arguments.root)
    name, at = resolve_run_step(root, arguments.where)
    step = at if arguments.step is None else arguments.step
    if step is None:
        raise InvalidRuntime(f"{name} has many steps: pass {name}@STEP, or --step STEP")
    plan = loader.plan_of(root, name, step)
    part = {
        "step": step,
        "rank": arguments.rank,
        "world_size": arguments.world,
        "slot": arguments.slot,
    }
    with recipe_process(root, arguments.recipe) as recipe:
        if recipe is None:
            provenance = loader.explain(plan, **part)
        else:
            provenance = recipe.inspect(Setting(plan=plan.hash), partial(_explain, **part))
    with closing(Training(root, name)) as training:
        untrained = _untrained_reason(training, step)
    runs = pipeline_runs(root, provenance)
    exclusions = find_exclusions(root, provenance)
    slices = plan_slices(plan)
    body = []
    texts = []
    for explanation, runs_of_sample, exclusion in zip(provenance, runs, exclusions, strict=True):
        more = {
            "made_by": [run.to_json() for run in runs_of_sample],
            "slices": slices,
            "excluded": None if exclusion is None else exclusion.to_json(),
        }
        body.append(explanation.to_json() | more | untrained)
        lines = [str(explanation), *(f"  made by     {run.line(arguments.ui)}" for run in runs_of_sample)]
        if slices:
            lines.append(f"  slices      {', '.join(slices)}")
        if exclusion is not None:
            lines.append(f"  {exclusion.line()}")
        texts.append("\n".join(lines))
    return body, "\n\n".join([*untrained.values(), *texts]), 0


def _explain(replay: "loader.Replay", **part: Any) -> "list[Explanation]":
    return loader.explain(replay.plan, **part)


def _untrained_reason(training: "Training", step: int) -> dict[str, str]:
    """Return {"untrained": why}; empty for a recorded step, and for a plan, which records no steps."""
    why = ""
    if training.trail is not None:
        why = training.untrained(step)
    return {"untrained": why} if why else {}


SEEN_FORM = ("{:>10}", "  {:>6}", "  {:>6}", "  {}")


@verb(
    "list the steps that held a sample, or the runs that trained on it",
    argument("where", "run, run@step, plan hash or state file; left out with --runs", nargs="?"),
    argument("source", "name of a source of the plan"),
    argument("key", "key of a sample; of a dataset without --recipe: number of an item"),
    RECIPE,
    flag("--runs", "list all runs and checkpoints that trained on the sample"),
    argument("--checkpoints URL", "with --runs: root of the checkpoints (default: the same root)"),
    argument(
        "--before STEP",
        "the training's next step (default: the one after WHERE's, or after the last on the run's trail)",
        type=int,
    ),
)
def run_seen(arguments: Namespace) -> Answer:
    """List the slots that held a sample in the steps before --before, recorded substitutes included.

    Each step uses the plan that last trained it. Raises: InvalidRuntime if there is no such sample or step.
    """
    from ..view.replays.training import Training, resolve_run_step
    from ..view.sample_relations import find_slots

    root = loader.Root(arguments.root)
    if arguments.runs:
        return _list_runs(root, arguments)
    if arguments.where is None or arguments.checkpoints is not None:
        raise InvalidRuntime("name a run: penstock seen RUN SOURCE KEY, or penstock seen --runs SOURCE KEY")
    name, last = resolve_run_step(root, arguments.where)
    with closing(Training(root, name)) as training, recipe_process(root, arguments.recipe) as recipe:
        before = arguments.before
        if before is None:
            # RUN@STEP includes its step; --before does not.
            before = (training.last_step if last is None else last) + 1
        if before < 1:
            raise InvalidRuntime(
                f"the last step of {name} is not recorded: pass --before STEP, 1 or more, or {name}@STEP"
            )
        sources = partial(_source_name, arguments.source)
        slots, errors = find_slots(training, sources, arguments.key, before, recipe=recipe)
        for error in errors:
            # A run may change its plan. A plan without the sample is an error only if no other plan has it.
            if not isinstance(error, InvalidRuntime) or len(errors) == len(training.plans(before)):
                raise error
        plan = training.plan_hash(before - 1)
        untrained = _untrained_reason(training, before - 1)
        note = {}
        if recipe is None and _is_dataset(training.plan(before - 1), arguments.source):
            note = {"note": f"{arguments.key!r} is an item's number: {_BY_NUMBER}"}
    body = {
        "plan": plan,
        "source": arguments.source,
        "key": arguments.key,
        "before": before,
        "seen": [one._asdict() for one in slots],
        **untrained,
        **note,
    }
    rows = [
        [one.step, one.slot, one.epoch, f"substitute {one.attempt}" if one.attempt else ""] for one in slots
    ]
    table = Table(form=SEEN_FORM, header=("step", "slot", "epoch", ""), rows=rows)
    return body, [*untrained.values(), *note.values(), table], 0


_BY_NUMBER = "names of a dataset's items need --recipe module:function, which returns the dataset"


def _source_name(source: str, plan: "loader.Plan") -> list[str]:
    return [source]


def _is_dataset(plan: "loader.Plan", source: str) -> bool:
    from loader.order.sources.items_view import ItemsView

    planned = plan.sources.get(source)
    return planned is not None and isinstance(planned.view, ItemsView)


def _list_runs(root: "loader.Root", arguments: Namespace) -> Answer:
    """List runs, steps and checkpoints that trained on a sample. Exit status 1 if a run is unknown."""
    from ..train.trained_on import trained_on

    if arguments.where is not None or arguments.before is not None:
        raise InvalidRuntime("--runs searches every run: leave out RUN and --before")
    if arguments.recipe is not None:
        raise InvalidRuntime(
            "--runs searches plans without their datasets: leave out --recipe, and pass an item's number as KEY"
        )
    known: set[str] = set()

    def sources(plan: "loader.Plan") -> list[str]:
        names = {planned.source for planned in plan.sources.values()} | set(plan.sources)
        known.update(names)
        if arguments.source in names:
            return [arguments.source]
        return []

    checkpoints = None
    if arguments.checkpoints is not None:
        checkpoints = loader.Root(arguments.checkpoints)
    runs = trained_on(root, sources, [arguments.key], checkpoints)
    if known and arguments.source not in known:
        raise InvalidRuntime(
            f"no plan has a source {arguments.source!r}; they have {', '.join(sorted(known))}"
        )
    body = [run.to_json() for run in runs]
    text = "\n".join(run.text() for run in runs) or f"no run of {root.url} trained on {arguments.key}"
    return body, text, 1 if any(run.error for run in runs) else 0
