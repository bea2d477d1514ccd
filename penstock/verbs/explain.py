"""`penstock explain PLAN --step S`: the way back."""

from argparse import ArgumentParser, Namespace

import loader

from .verb import Answer, Verb, add_world


def arguments(parser: ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("plan", help="hash of a plan saved under the root (p-...)")
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--slot", type=int, default=None, help="one slot, counted from 0")
    add_world(parser)


def run(arguments: Namespace) -> Answer:
    """Where the samples of a step come from."""
    root = loader.Root(arguments.root)
    plan = loader.open_plan(root, arguments.plan)
    found = loader.explain(plan, arguments.step, arguments.rank, arguments.world, arguments.slot)
    return [one.to_json() for one in found], "\n\n".join(map(str, found)), 0


VERB = Verb(
    text="from a step of a saved plan back to its bytes and raw objects", run=run, arguments=arguments
)
