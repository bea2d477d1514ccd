"""`penstock seen PLAN SOURCE KEY --before STEP`: the steps of a saved plan whose batches hold a sample."""

from argparse import ArgumentParser, Namespace

import loader

from ..console.table import Table
from .verb import Answer, Verb

FORM = ("{:>10}", "  {:>6}", "  {:>6}")


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("plan", help="hash of a plan that plan.save(root) stored, p-...")
    parser.add_argument("source", help="name of a source of the plan")
    parser.add_argument("key", help="key of a sample")
    parser.add_argument("--before", type=int, required=True, metavar="STEP", help="the training's next step")


def run(arguments: Namespace) -> Answer:
    """Return the slots that held the sample in the steps before the given one."""
    plan = loader.open_plan(loader.Root(arguments.root), arguments.plan)
    found = plan.steps_of(arguments.source, arguments.key, before=arguments.before)
    body = {
        "plan": plan.hash,
        "source": arguments.source,
        "key": arguments.key,
        "before": arguments.before,
        "seen": [{"step": one.step, "slot": one.slot, "epoch": one.epoch} for one in found],
    }
    rows = [[one.step, one.slot, one.epoch] for one in found]
    return body, [Table(form=FORM, header=("step", "slot", "epoch"), rows=rows)], 0


VERB = Verb(text="the steps that held a sample", run=run, arguments=arguments)
