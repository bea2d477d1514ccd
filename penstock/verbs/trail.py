"""`penstock trail ls|show|verify|against|window`: trails, the logs of training runs."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import Corrupt, FormatTooNew, PenstockError

from ..places import check_root_or_records
from ..progress import progress
from ..text import lines_text
from ..units import second
from .verb import Answer, Table, Verb, argument, flag, verb
from .view import RECIPE, recipe_process

if TYPE_CHECKING:
    import polars as pl

    from loader.run.trail.compared_notes import ComparedNotes
    from loader.run.trail.read_trail import RunTrail

    from ..view.replays.recipe_process import RecipeProcess
    from ..view.replays.replayed_values import Setting

Row = dict[str, Any]

LS = ("run", "steps", "first", "last", "ranks", "from (UTC)", "to (UTC)", "plan")
LS_FORM = ("{:<24}", " {:>9}", " {:>10}", " {:>10}", " {:>5}", "  {:<19}", "  {:<19}", "  {}")
SLOTS = ("slot", "first run", "second run")
SLOTS_FORM = ("{:>8}", "  {:<40}", "  {}")
RECORD_COLUMNS = ("step", "rank", "world_size", "digest", "substituted")
MAX_SLOTS = 20
"""Most slots shown for a differing step."""
RECORDS_TOGETHER = 8
"""Records that the recipe's process checks by one request."""
VERIFY_S = 3600.0
"""Seconds of such a request, which makes the items of its records."""


@verb(
    "list runs and steps, and steps with two different records", argument("run", "only this run", nargs="?")
)
def ls(arguments: Namespace) -> Answer:
    """Exit with 1 if a run is unreadable or has two different records for one step."""
    from loader.run.trail.read_trail import trail_runs
    from loader.storage.mirror import primary_store

    root = loader.Root(arguments.root)
    store = primary_store(root.store)
    body = [_summary(root, run) for run in ([arguments.run] if arguments.run else trail_runs(store))]
    if not body:
        check_root_or_records(store, "trails")
    cells = []
    for row in body:
        plans = ", ".join(row["plans"])
        cells.append(
            (
                row["run"],
                row["steps"],
                _cell(row["first"]),
                _cell(row["last"]),
                row["ranks"],
                _cell(row["from"]),
                _cell(row["to"]),
                row["problem"] or plans,
            )
        )
    text = [Table(form=LS_FORM, header=LS, rows=cells)] if body else f"{store.url} has no trails"
    return body, text, 1 if any(row["problem"] for row in body) else 0


def _cell(value: object) -> object:
    return "-" if value is None else value


def _summary(root: "loader.Root", run: str) -> Row:
    row: Row = dict.fromkeys(("first", "last", "from", "to")) | {"steps": 0, "ranks": 0, "plans": []}
    try:
        trail = loader.read_trail(root, run)
    except (Corrupt, FormatTooNew) as error:
        return {"run": run, **row, "problem": str(error)}
    steps = trail.steps
    if len(steps):
        at_us: Any = steps["at_us"]
        row = {
            "first": steps["step"].min(),
            "last": steps["step"].max(),
            "from": second(at_us.min()),
            "to": second(at_us.max()),
            "steps": steps["step"].n_unique(),
            "ranks": steps["rank"].n_unique(),
        }
    differ = trail.differing
    problem = ""
    if differ:
        problem = f"{len(differ)} steps have two different records, the first is {differ[0]}"
    # A dict keeps the order of the starts; a set would not.
    plans = list(dict.fromkeys(one.plan for one in trail.starts if one.plan))
    if any(not one.plan for one in trail.starts):
        try:
            plans += _newest_plan(root, run)
        except (Corrupt, FormatTooNew) as error:
            problem = problem or str(error)
    return {
        "run": run,
        **row,
        "plans": plans,
        "problem": problem,
    }


def _newest_plan(root: "loader.Root", run: str) -> list[str]:
    """Return the newest plan of a run whose starts name none; [] without one.

    A run of `loader.online` or `follow` has many plans, too many for one line.
    """
    from loader.api.plan_of import newest_plan  # imports numpy, which most verbs do without

    plan = newest_plan(root, run)
    return [plan] if plan else []


@verb(
    "recompute every recorded digest, without stored media; of datasets from their items, by --recipe",
    argument("run"),
    argument("--ledger URL", "root with the run's ledger (default: the same root)"),
    RECIPE,
)
def verify(arguments: Namespace) -> Answer:
    """Recompute every digest from indexes, items and ledger. Exit status 1 if one differs or cannot be checked."""
    root = loader.Root(arguments.root)
    ledger = loader.Root(arguments.ledger) if arguments.ledger else root
    trail = loader.read_trail(root, arguments.run)
    with recipe_process(root, arguments.recipe, limit_s=VERIFY_S) as recipe:
        checks = progress(_recompute(root, ledger, trail, recipe), "verify", total=len(trail.steps))
        wrong = [row for row in checks if row["problem"]]
    unknown = sum(not row["checked"] for row in wrong)
    lines = [f"{_records_text(rows)}: {rows[0]['problem']}" for rows in _alike(wrong)]
    if wrong:
        result = f"{len(wrong) - unknown} differ, {unknown} could not be checked"
    elif arguments.recipe is not None:
        result = "the stored bytes, and the items of datasets, equal the training's"
    else:
        result = "the stored bytes equal the training's"
    n_steps = trail.steps["step"].n_unique()
    lines.append(f"{arguments.run}: {len(trail.steps)} records of {n_steps} steps; {result}")
    body = {"run": arguments.run, "records": len(trail.steps), "problems": wrong}
    return body, lines_text(lines), 1 if wrong else 0


def _alike(wrong: list[Row]) -> "Iterator[list[Row]]":
    """Yield records that could not be checked for one reason together, and each other record by itself."""

    def reason(row: Row) -> tuple[str, int]:
        # `id` differs for each row, so a differing record never joins a group.
        number = -1 if not row["checked"] else id(row)
        return row["problem"], number

    for _, rows in groupby(wrong, key=reason):
        yield list(rows)


def _records_text(rows: list[Row]) -> str:
    first = rows[0]
    if len(rows) == 1:
        return f"step {first['step']} rank {first['rank']} of {first['world_size']}"
    steps = [row["step"] for row in rows]
    return f"{len(rows)} records of steps {min(steps)} to {max(steps)}"


def _recompute(
    root: "loader.Root",
    ledger: "loader.Root",
    trail: "RunTrail",
    recipe: "RecipeProcess | None",
) -> Iterator[Row]:
    """Yield each step record, and why its digest differs."""
    from ..view.replays.replayed_values import Setting

    # By start and plan: each plan opens once for its records. A start has one plan, or plans that change by step.
    rows = trail.steps.sort("start", "world_size", "rank", "step")
    for (start_id,), records in rows.group_by("start", maintain_order=True):
        start = trail.start(str(start_id))
        check = partial(check_records, ledger=ledger, epochs=start.epochs)
        for plan_hash, plan_records in _group_by_plan(root, trail.run, start.plan, records):
            setting = Setting(plan=plan_hash, epochs=start.epochs)
            yield from _check_plan(root, setting, plan_records, check, recipe)


def _check_plan(
    root: "loader.Root",
    setting: "Setting",
    records: list[Row],
    check: "Callable[[loader.Plan, list[Row]], Iterator[Row]]",
    recipe: "RecipeProcess | None",
) -> Iterator[Row]:
    """Yield each step record of a plan with "checked" and "problem"."""
    from ..view.shown_values import dataset_facts

    try:
        plan = loader.open_plan(root, setting.plan, retired=True)
        has_datasets = bool(dataset_facts(plan))
    except PenstockError as error:
        for row in records:
            yield {**row, "checked": False, "problem": str(error)}
        return
    # A recipe makes the items of the plan's datasets. Digests of stored samples need none.
    if recipe is None or not has_datasets:
        yield from check(plan, records)
        return
    for first in range(0, len(records), RECORDS_TOGETHER):
        # One request per record would cost more than a small check; one for all would exceed the time limit.
        group = records[first : first + RECORDS_TOGETHER]
        yield from recipe.inspect(setting, partial(_check_by_recipe, check, group))


def _group_by_plan(
    root: "loader.Root",
    run: str,
    plan: str,
    records: "pl.DataFrame",
) -> Iterator[tuple[str, list[Row]]]:
    """Yield (hash of a plan, its step records).

    plan: of all records; "" if the run's decisions name the plans, which then change by step.
    """
    rows = records.select(*RECORD_COLUMNS)
    if plan:
        yield plan, list(rows.iter_rows(named=True))
        return
    from loader.api.decided_plans import DecidedPlans  # imports numpy, which most verbs do without

    decided = DecidedPlans(root, run)
    # groupby joins neighbours only. A decided plan serves consecutive steps.
    by_step = rows.sort("step").iter_rows(named=True)
    for plan_hash, plan_records in groupby(by_step, key=lambda row: decided.plan_hash(row["step"])):
        yield plan_hash, list(plan_records)


def _check_by_recipe(
    check: "Callable[[loader.Plan, list[Row]], Iterator[Row]]",
    records: list[Row],
    replay: "loader.Replay",
) -> list[Row]:
    return list(check(replay.plan, records))


def check_records(
    plan: "loader.Plan",
    records: list[Row],
    *,
    ledger: "loader.Root",
    epochs: int | None,
) -> Iterator[Row]:
    """Yield each step record of a plan with "checked" and "problem". ledger: root with the ledger."""
    from ..view.replays.replays import index_replay

    with index_replay(plan, None, epochs) as planned, index_replay(plan, ledger, epochs) as recorded:
        for row in records:
            # Substitutes of a record are in the ledger. Other records need none of its reads.
            replay = recorded if row["substituted"] else planned
            checked, problem = _problem(replay, row)
            yield {**row, "checked": checked, "problem": problem}


def _problem(replay: "loader.Replay", row: Row) -> tuple[bool, str]:
    """Return whether the digest could be computed, and the problem, or ""."""
    from ..view.shown_values import dataset_facts

    place = row["step"], row["rank"], row["world_size"]
    try:
        if row["substituted"]:
            replay.settle(row["step"], [(row["rank"], row["world_size"], row["digest"], row["substituted"])])
        now = replay.digest(*place)
    except PenstockError as error:
        return False, str(error)
    if now == row["digest"]:
        return True, ""
    slots = replay.slots(*place)
    present = {replay.plan.source_names[source] for source in slots.source[slots.valid].tolist()}
    datasets = sorted(present & dataset_facts(replay.plan).keys())
    if not datasets:
        return True, f"the training got digest {row['digest']:016x}, the stored bytes have {now:016x}"
    # Checksums of stored samples are their version's, so a difference lies in the items.
    names = " or ".join(f"'{name}'" for name in datasets)
    text = f"the training got digest {row['digest']:016x}, the items made now give {now:016x}"
    return True, f"{text}; they differ in source {names}"


@verb(
    "find the first step that differs between two runs",
    argument("run"),
    argument("other", "another run under the same root"),
)
def against(arguments: Namespace) -> Answer:
    """Find the first differing step of two runs. Exit status 1 if there is one, or no step was compared."""
    from loader.run.trail.compared_notes import compare_notes

    from ..train.replay_run import replay_origin
    from ..view.inspect.run_comparison import run_comparison
    from ..view.marks import count_text
    from ..view.sections.comparisons import sample_cell
    from ..view.sections.texts import plain_text

    root = loader.Root(arguments.root)
    trails = [loader.read_trail(root, run) for run in (arguments.run, arguments.other)]
    comparison = run_comparison(root, *trails)
    notes = compare_notes(*trails)
    text: list[str | Table] = ["\n".join([*comparison.lines, *_note_lines(root, arguments, notes)])]
    if comparison.slots:
        rows = []
        for differing in comparison.slots[:MAX_SLOTS]:
            samples = [plain_text(sample_cell(sample)) for sample in differing.samples]
            rows.append((differing.slot, *samples))
        text.append(Table(form=SLOTS_FORM, header=SLOTS, rows=rows))
        if comparison.n_slots > len(rows):
            listed = ""
            if len(comparison.slots) > len(rows):
                listed = f"; --json lists {len(comparison.slots)}"
            text.append(f"and {count_text(comparison.n_slots - len(rows), 'more slot')}{listed}")
    replayed = replay_origin(arguments.other) == arguments.run
    # A replay repeats the steps, so its metrics must agree too. Other runs may train another model on equal batches.
    equal = comparison.compared and comparison.step < 0 and not (replayed and notes.n_differing)
    return {**comparison.to_json(), "notes": notes.to_json()}, text, 0 if equal else 1


def _note_lines(root: "loader.Root", arguments: Namespace, notes: "ComparedNotes") -> Iterator[str]:
    """Yield lines on the metrics of two runs: the first one that differs, and the nodes of its step."""
    from ..train.replay_run import step_nodes
    from ..train.run_folder import RunFolder
    from ..view.marks import count_text

    if not notes.compared:
        return
    if notes.not_finite >= 0:
        yield (
            f"step {notes.not_finite} has no finite metric in both: data or model, not a node; "
            f"penstock explain {arguments.run}@{notes.not_finite} names its samples"
        )
    if not notes.n_differing:
        yield f"{count_text(notes.compared, 'metric')} are equal, bit by bit"
        return
    first = notes.differing[0]
    of = count_text(notes.compared, "metric")
    yield (
        f"{notes.n_differing:,} of {of} differ, first {first.note} of step {first.step}, "
        f"{first.values[0]} and {first.values[1]}"
    )
    folders = [RunFolder(root.store, run) for run in (arguments.run, arguments.other)]
    nodes, others = (set(step_nodes(folder, first.step, first.step + 1)) for folder in folders)
    if only := sorted(nodes - others):
        yield f"{arguments.run} did this step on {', '.join(only)}, and {arguments.other} did not"


@verb(
    "summarize some steps: repeated samples, mixture, buckets, substitutes",
    argument("run", "run, or hash of a plan"),
    argument("--from STEP", "first step", dest="first", type=int),
    argument("--to STEP", "last step, at most 2,000 in all", dest="last", type=int),
)
def window(arguments: Namespace) -> Answer:
    """Summarize steps (default: the last 100)."""
    from ..view.inspect.step_range import step_range
    from ..view.replays.training import Training
    from ..view.sections.characters.section_lines import page_text
    from ..view.sections.step_range import step_range_sections

    with closing(Training(loader.Root(arguments.root), arguments.run)) as training:
        record = step_range(training, arguments.first, arguments.last)
    return record.to_json(), page_text(step_range_sections(record)), 0


@verb(
    "show unusual steps of a run, its decisions, and its samples with the largest metrics",
    argument("run", "name of the run"),
    flag("--all", "list all unusual steps (default: the worst 20)"),
)
def show(arguments: Namespace) -> Answer:
    """Raise RunNotFound without a trail."""
    from loader.api.decided_plans import has_decisions
    from loader.storage.mirror import primary_store

    from ..view.inspect.run_record import MOST_SPIKES, run_record
    from ..view.replays.training import Training
    from ..view.rollouts.decisions import decision_summary, is_online, summary_lines
    from ..view.sections.characters.section_lines import page_text
    from ..view.sections.unusual import trail_sections

    root = loader.Root(arguments.root)
    loader.read_trail(root, arguments.run)
    with closing(Training(root, arguments.run)) as training:
        record = run_record(training, most=None if arguments.all else MOST_SPIKES)
        names_no_plan = is_online(training)
    if not names_no_plan or not has_decisions(primary_store(root.store), arguments.run):
        return record.to_json(), page_text(trail_sections(record)), 0
    summary = decision_summary(root, arguments.run)
    body = {**record.to_json(), "decisions": summary.to_json()}
    return body, page_text(trail_sections(record, summary_lines(summary))), 0


VERB = Verb(
    text="read trails (run logs) of trainings: what each step delivered",
    verbs={"ls": ls, "show": show, "verify": verify, "against": against, "window": window},
)
