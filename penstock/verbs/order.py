"""`penstock order REF --step S`: what a plan over one version would read."""

from argparse import ArgumentParser, Namespace
from typing import Any

import loader

from ..console.table import Table
from .verb import Answer, Verb, add_fields, add_world, choose_fields

FORM = ("{:>6}", "  {}", "  {}")


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("ref", help="e.g. photos@3")
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="global batch size")
    parser.add_argument("--seed", type=int, default=0)
    add_fields(parser)
    add_world(parser)


def run(arguments: Namespace) -> Answer:
    """Return the planned batch of a step over one version; the source has the dataset's name."""
    version = loader.Root(arguments.root).open(arguments.ref)
    fields, where_present = choose_fields(version, arguments.fields)
    plan = loader.plan(  # which fields are read changes no order, but which samples there are
        {version.dataset: version.select(*fields, where_present=where_present)},
        seed=arguments.seed,
        global_batch=arguments.batch,
        allow_repeats=True,
    )
    ids = list(enumerate(plan.batch_ids(arguments.step)))
    if arguments.world is not None or arguments.rank is not None:
        from loader.order.steps.slots import rank_slice
        from loader.run.recipe.world import World

        world = World.of(arguments.rank, arguments.world)
        ids = ids[rank_slice(arguments.batch, world.rank, world.world_size)]
    body: dict[str, Any] = {
        "plan": plan.hash,
        "step": arguments.step,
        "ids": [[slot, source, key] for slot, (source, key) in ids],
    }
    return body, [Table(form=FORM, header=("slot", "source", "key"), rows=body["ids"], titled=False)], 0


VERB = Verb(text="the keys of a step's batch", run=run, arguments=arguments)
