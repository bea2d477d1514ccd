"""`penstock order-of seen|mds`: the rest of an epoch that was begun elsewhere, as a list."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import loader
from loader.errors import InvalidRuntime
from loader.json_text import parse_json

from .verb import Answer, Verb, add_fields, choose_fields, key_lines


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `order-of seen`."""
    parser.add_argument("ref", help="e.g. photos@3")
    parser.add_argument(
        "--seen",
        required=True,
        metavar="FILE",
        help="file with a key per line, of samples that were read; - is standard input",
    )
    parser.add_argument(
        "--by",
        choices=("key", "source_key"),
        default="key",
        help="column that has these keys: the version's own, or source_key, the one that the sample had before",
    )
    parser.add_argument("--where", default=None, help="SQL expression: samples of the training")
    parser.add_argument("--seed", type=int, default=0, help="of the order of those that are left")
    add_fields(parser)


def run(arguments: Namespace) -> Answer:
    """Store the list of the samples that are left."""
    from ..formats.mds.foreign_orders import left_over, ordinals_of

    version = loader.Root(arguments.root).open(arguments.ref)
    fields, where_present = choose_fields(version, arguments.fields)
    view = version.select(*fields, where_present=where_present)
    if arguments.where:
        view = view.where(arguments.where)
    keys = list(key_lines("--seen", arguments.seen))
    seen = ordinals_of(version, keys, arguments.by)
    made = loader.listed(view, left_over(view, seen, arguments.seed))
    excluded = int((seen < 0).sum())
    body = {
        "version": version.name,
        "list": made.list_sha256,
        "view": made.id,
        "samples": len(made),
        "of": len(view),
        "seen": len(keys),
        "seen_excluded": excluded,
    }
    lines = [
        f"list {made.list_sha256}",
        f"{len(made)} of {len(view)} samples of {version.name} are left; {len(keys)} keys were seen, of samples that "
        f"{version.name} excludes {excluded}",
        f'open it as loader.listed(view, "{made.list_sha256}")',
    ]
    return body, "\n".join(lines), 0


def streaming_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `order-of mds`."""
    parser.add_argument("ref", help="version of the dataset's samples, registered or imported")
    parser.add_argument(
        "url", help="folder or bucket prefix of an index.json: the dataset's, or that of a split"
    )
    parser.add_argument("--batch-size", type=int, required=True, help="samples of a rank's batch")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1, help="of a node (default: 1)")
    parser.add_argument("--workers", type=int, default=0, help="num_workers of the DataLoader (default: 0)")
    parser.add_argument(
        "--step", type=int, default=0, help="first step to read, of the epoch or behind --state"
    )
    parser.add_argument("--epoch", type=int, default=0)
    parser.add_argument(
        "--shuffle", metavar="ALGO", default=None, help="shuffle_algo (default: not shuffled)"
    )
    parser.add_argument("--seed", type=int, default=9176, help="shuffle_seed (default: 9176, the library's)")
    parser.add_argument("--state", metavar="FILE", help="JSON of StreamingDataset.state_dict(), resumed from")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="further argument of StreamingDataset, as JSON; may be repeated",
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter that has mosaicml-streaming")
    add_fields(parser)


def run_streaming(arguments: Namespace) -> Answer:
    """Store the list of the samples that an epoch of MosaicML streaming has yet to read."""
    from loader.storage import open_store

    from ..formats.mds.streaming_order import ordinals_of_numbers, rest_of, streaming_epoch

    for name in ("batch_size", "nodes", "ranks"):
        if (given := getattr(arguments, name)) < 1:
            raise InvalidRuntime(f"--{name.replace('_', '-')} {given}: a number above 0 is needed")
    version = loader.Root(arguments.root).open(arguments.ref)
    fields, where_present = choose_fields(version, arguments.fields)
    view = version.select(*fields, where_present=where_present)
    shuffle = {"shuffle_algo": arguments.shuffle} if arguments.shuffle else {}
    asked = {
        "dataset": {
            "batch_size": arguments.batch_size,
            "shuffle": bool(shuffle),
            "shuffle_seed": arguments.seed,
            **shuffle,
            **dict(_option(text) for text in arguments.option),
        },
        **{name: getattr(arguments, name) for name in ("nodes", "ranks", "workers", "epoch")},
        "state": _state(arguments.state),
    }
    epoch = streaming_epoch(arguments.url, asked, arguments.python)
    numbers = rest_of(epoch.steps, arguments.step)
    made = loader.listed(view, ordinals_of_numbers(version, numbers, open_store(arguments.url).url))
    batch = epoch.steps.shape[1]
    body = {
        "version": version.name,
        "list": made.list_sha256,
        "view": made.id,
        "samples": len(made),
        "global_batch": batch,
        "steps": -(-len(made) // batch),
        "streaming": epoch.release,
    }
    lines = [
        f"list {made.list_sha256}",
        f"{len(made)} samples of {version.name} are left in {body['steps']} steps of {batch}, as "
        f"streaming {epoch.release} lays them out",
        f'open it as loader.listed(view, "{made.list_sha256}"), in a plan with global_batch={batch}',
    ]
    return body, "\n".join(lines), 0


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise InvalidRuntime(f"--option {text!r}: NAME=VALUE is needed")
    try:
        return name, parse_json(value.encode())
    except ValueError:
        return name, value


def _state(file: str | None) -> Any:
    if file is None:
        return None
    wanted = {"epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed"}
    try:
        state = parse_json(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidRuntime(
            f"--state {file} cannot be read ({error}); name the JSON of a state_dict()"
        ) from None
    if not isinstance(state, dict) or not wanted <= state.keys():
        raise InvalidRuntime(
            f"--state {file} is no state of a StreamingDataset, which has {', '.join(sorted(wanted))}"
        )
    return state


VERB = Verb(
    text="the rest of an epoch that was begun elsewhere",
    verbs={
        "seen": Verb(text="what a file of keys leaves of an epoch, as a list", run=run, arguments=arguments),
        "mds": Verb(
            text="what an epoch of MosaicML streaming has yet to read, as a list",
            run=run_streaming,
            arguments=streaming_arguments,
        ),
    },
)
