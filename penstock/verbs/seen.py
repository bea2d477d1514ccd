"""`penstock seen WHERE SOURCE KEY`: the steps of a run, or of a saved plan, whose batches hold a sample."""

from argparse import ArgumentParser, Namespace

import loader
from loader.errors import InvalidRuntime

from ..console.table import Table
from .verb import Answer, Verb

FORM = ("{:>10}", "  {:>6}", "  {:>6}", "  {}")


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("where", help="run, run@step, plan hash or state file")
    parser.add_argument("source", help="name of a source of the plan")
    parser.add_argument("key", help="key of a sample")
    parser.add_argument(
        "--before",
        type=int,
        default=None,
        metavar="STEP",
        help="the training's next step (default: the one after WHERE's, or after the last on the run's trail)",
    )


def run(arguments: Namespace) -> Answer:
    """Return the slots that held the sample in the steps before the given one, substitutes on record too.

    Each step counts under the plan that it was trained under last. Raises: InvalidRuntime where no plan has the
    sample, or without a step."""
    from ..view.replays.training import Training, where
    from ..view.samples.held_steps import held_slots

    root = loader.Root(arguments.root)
    name, last = where(root, arguments.where)
    training = Training(root, name)
    try:
        before = arguments.before
        if before is None:
            before = (training.last_step if last is None else last) + 1
        if before < 1:
            raise InvalidRuntime(f"which steps of {name}? Pass --before STEP, of 1 or more, or {name}@STEP")
        found, errors = held_slots(training, lambda _: [arguments.source], arguments.key, before)
        for error in errors:
            if not isinstance(error, InvalidRuntime) or len(errors) == len(training.plans(before)):
                raise error
        plan = training.plan_hash(before - 1)
    finally:
        training.close()
    body = {
        "plan": plan,
        "source": arguments.source,
        "key": arguments.key,
        "before": before,
        "seen": [one._asdict() for one in found],
    }
    rows = [
        [one.step, one.slot, one.epoch, f"substitute {one.attempt}" if one.attempt else ""] for one in found
    ]
    return body, [Table(form=FORM, header=("step", "slot", "epoch", ""), rows=rows)], 0


VERB = Verb(text="the steps that held a sample", run=run, arguments=arguments)
