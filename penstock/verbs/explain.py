"""`penstock explain RUN@STEP`: the provenance of the samples of a step."""

from argparse import ArgumentParser, Namespace

import loader
from loader.errors import InvalidRuntime

from .verb import Answer, Verb, add_world


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("where", help="run@step, run, hash of a saved plan (penstock plans ls) or state file")
    parser.add_argument("--step", type=int, default=None, help="global step; needed unless WHERE is run@step")
    parser.add_argument("--slot", type=int, default=None, help="one slot, counted from 0")
    parser.add_argument("--ui", default="", metavar="URL", help="Dagster's webserver, to print links to runs")
    add_world(parser)


def run(arguments: Namespace) -> Answer:
    """Return where the samples of a step come from, and which runs of the pipeline made them."""
    from ..lineage import made_by
    from ..view.replays.training import where

    root = loader.Root(arguments.root)
    name, at = where(root, arguments.where)
    step = at if arguments.step is None else arguments.step
    if step is None:
        raise InvalidRuntime(f"{name} has many steps: pass {name}@STEP, or --step STEP")
    found = loader.explain(
        loader.plan_of(root, name, step), step, arguments.rank, arguments.world, arguments.slot
    )
    runs = made_by(root, found)
    body = [
        one.to_json() | {"made_by": [made.to_json() for made in mine]}
        for one, mine in zip(found, runs, strict=True)
    ]
    told = [
        "\n".join([str(one), *(f"  made by     {made.line(arguments.ui)}" for made in mine)])
        for one, mine in zip(found, runs, strict=True)
    ]
    return body, "\n\n".join(told), 0


VERB = Verb(
    text="from a step of a run or plan back to its bytes, raw objects and Dagster runs",
    run=run,
    arguments=arguments,
)
