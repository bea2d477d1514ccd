"""A small transformer learns sums by GRPO, on a CPU: samplers and a trainer that may be killed at any moment.

    python -m examples.rl.arithmetic begin --out sums
    python -m examples.rl.arithmetic sample --out sums --name w0 &
    penstock train submit sums/sums.toml
    penstock train wait sums --root sums/root
    python -m examples.rl.arithmetic show --out sums

`begin` shows the policy right answers for some steps, until it answers one sum in three. Samplers publish their answers
with rewards, group by group. The trainer reads what `loader.online` decides for each step: the same rollouts on any
number of ranks, and after every restart. With `--like sums`, a run of another name trains the same steps again.
`walk` does all of it, kills processes on the way, and compares the runs (`make posttraining`).
"""

import argparse
import sys
from pathlib import Path

import loader
from penstock.train import Run

from .sums import task
from .sums.model import accuracy, warmed_up
from .sums.report import report
from .sums.run_folder import RunFolder, Settings
from .sums.sampler import sample
from .sums.trainer import train
from .sums.walk import walk, write_run_file

RUN = "sums"
"""Name of the run that the samplers feed."""
WARM_UP_STEPS = 150


def begin(folder: RunFolder, options: argparse.Namespace) -> None:
    """Make the first policy, and write what the processes of the run agree on."""
    settings = Settings(
        run=RUN,
        ranks=options.ranks,
        steps=options.steps,
        groups=options.groups,
        answers=8,
        max_lag=2,
        length=64,
        checkpoint_every=10,
        learning_rate=2e-3,
        seed=options.seed,
    )
    policy = warmed_up(settings.seed, options.warm_up)
    folder.begin(settings, policy)
    with loader.Root(folder.root) as root:
        root.create()
    file = write_run_file(folder, settings.run, options.ranks)
    share = accuracy(policy, task.sums(held_out=True))
    print(
        f"policy 0 answers {share:.1%} of the sums that no step has; train it: penstock train submit {file}"
    )


def main() -> int:
    """Run one of the commands."""
    options = parsed()
    folder = RunFolder(options.out.resolve())
    if options.command == "begin":
        begin(folder, options)
    elif options.command == "sample":
        sample(folder, options.name, options.groups)
    elif options.command == "train":
        with Run.joined(name=options.run, checkpoints=folder.root, record=folder.root) as run:
            train(folder, run, options.like)
    elif options.command == "show":
        print("\n".join(report(folder)))
    else:
        begin(folder, options)
        return walk(folder, kills=options.kills, seed=options.seed)
    return 0


def parsed() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.rl.arithmetic", description=(__doc__ or "").splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    helps = {
        "begin": "make the first policy, and the run's file",
        "sample": "answer prompts with the newest policy until the run ends",
        "train": "a rank of the trainer; `penstock train` starts it",
        "show": "rewards by policy, and the share of right answers",
        "walk": "the whole run with kills, and the same steps again on 1, 2 and 4 ranks",
    }
    parsers = {name: commands.add_parser(name, help=text) for name, text in helps.items()}
    for one in parsers.values():
        one.add_argument("--out", type=Path, required=True, help="folder of the run")
    for name in ("begin", "walk"):
        parsers[name].add_argument("--steps", type=int, default=100)
        parsers[name].add_argument("--groups", type=int, default=64, help="prompts of a step")
        parsers[name].add_argument("--warm-up", type=int, default=WARM_UP_STEPS)
        parsers[name].add_argument("--ranks", type=int, default=2)
        parsers[name].add_argument("--seed", type=int, default=1)
    parsers["walk"].add_argument("--kills", type=int, default=10)
    parsers["sample"].add_argument("--name", required=True, help="name of this sampler")
    parsers["sample"].add_argument("--groups", type=int, help="prompts of a transaction")
    parsers["train"].add_argument("--run", default=RUN, help="name, unless `penstock train` starts it")
    parsers["train"].add_argument("--like", default=None, help="train again what this run trained")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
