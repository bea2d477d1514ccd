"""`penstock order REF --step S`: what a plan over one version would read."""

from argparse import ArgumentParser, Namespace

import loader

from .verb import Answer, Verb, add_world, fields_of_all


def arguments(parser: ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("ref", help="e.g. photos@3")
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="global batch size")
    parser.add_argument("--seed", type=int, default=0)
    add_world(parser)


def run(arguments: Namespace) -> Answer:
    """The planned batch of a step over one version; the source has the dataset's name."""
    version = loader.Root(arguments.root).open(arguments.ref)
    plan = loader.plan(  # which fields are read changes no order
        {version.dataset: version.select(*fields_of_all(version))},
        seed=arguments.seed,
        global_batch=arguments.batch,
        allow_repeats=True,
    )
    ids = list(enumerate(plan.batch_ids(arguments.step)))
    if arguments.world is not None or arguments.rank is not None:
        from loader.order.mixing.assign import rank_slice
        from loader.run.recipe.world import World

        world = World.of(arguments.rank, arguments.world)
        ids = ids[rank_slice(arguments.batch, world.rank, world.world_size)]
    body = {
        "plan": plan.hash,
        "step": arguments.step,
        "ids": [[slot, source, key] for slot, (source, key) in ids],
    }
    return body, "\n".join(f"{slot:>6}  {source}  {key}" for slot, (source, key) in ids), 0


VERB = Verb(text="the keys of a step's batch", run=run, arguments=arguments)
