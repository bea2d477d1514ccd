"""`penstock explain PLAN --step S`: the way back."""

from argparse import ArgumentParser, Namespace

import loader

from .verb import Answer, Verb, add_world


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("plan", help="hash of a plan saved under the root (p-...)")
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--slot", type=int, default=None, help="one slot, counted from 0")
    parser.add_argument("--ui", default="", metavar="URL", help="Dagster's webserver, to print links to runs")
    add_world(parser)


def run(arguments: Namespace) -> Answer:
    """Return where the samples of a step come from, and which runs of the pipeline made them."""
    from ..lineage import made_by

    root = loader.Root(arguments.root)
    plan = loader.open_plan(root, arguments.plan)
    found = loader.explain(plan, arguments.step, arguments.rank, arguments.world, arguments.slot)
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
    text="from a step of a saved plan back to its bytes, raw objects and Dagster runs",
    run=run,
    arguments=arguments,
)
