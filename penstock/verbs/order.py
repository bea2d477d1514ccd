"""`penstock order|order-of|plans`: a plan's order, the rest of an epoch, and saved plans."""

import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import loader
from loader.errors import InvalidRuntime
from loader.json_text import parse_json

from ..text import lines_text
from ..units import minute
from .verb import (
    FIELDS,
    REF,
    WORLD,
    Answer,
    Table,
    Verb,
    argument,
    choose_fields,
    key_lines,
    list_option,
    verb,
)

ORDER_FORM = ("{:>6}", "  {}", "  {}")


@verb(
    "list the keys of a step's batch",
    REF,
    argument("--step", type=int, required=True),
    argument("--batch", "global batch size", type=int, required=True),
    argument("--seed", type=int, default=0),
    FIELDS,
    *WORLD,
)
def run_order(arguments: Namespace) -> Answer:
    """Return a step's planned batch."""
    version = loader.Root(arguments.root).open(arguments.ref)
    fields, where_present = choose_fields(version, arguments.fields)
    plan = loader.plan(  # the fields decide which samples are included, not their order
        {version.dataset: version.select(*fields, where_present=where_present)},
        seed=arguments.seed,
        global_batch=arguments.batch,
        allow_repeats=True,
    )
    ids = list(enumerate(plan.batch_ids(arguments.step)))
    if arguments.world is not None or arguments.rank is not None:
        from loader.order.slots import rank_slice
        from loader.run.recipe.world import World

        world = World.of(arguments.rank, arguments.world)
        # Slots are consecutive per rank, so a rank's part is one slice of the batch.
        ids = ids[rank_slice(arguments.batch, world.rank, world.world_size)]
    body: dict[str, Any] = {
        "plan": plan.hash,
        "step": arguments.step,
        "ids": [[slot, source, key] for slot, (source, key) in ids],
    }
    return body, [Table(form=ORDER_FORM, header=("slot", "source", "key"), rows=body["ids"], titled=False)], 0


@verb(
    "list an epoch without the keys of a file",
    REF,
    argument("--seen FILE", "file with a key of a read sample per line; - is standard input", required=True),
    argument(
        "--by",
        "column of these keys: key, or source_key, the key in the source",
        choices=("key", "source_key"),
        default="key",
    ),
    argument("--where", "SQL expression that selects the training's samples"),
    argument("--seed", "seed of the order of the remaining samples", type=int, default=0),
    FIELDS,
)
def run_order_of_seen(arguments: Namespace) -> Answer:
    """List the samples not read."""
    from ..formats.streaming_order import key_ordinals, remaining_samples

    version = loader.Root(arguments.root).open(arguments.ref)
    fields, where_present = choose_fields(version, arguments.fields)
    view = version.select(*fields, where_present=where_present)
    if arguments.where:
        view = view.where(arguments.where)
    keys = list(key_lines("--seen", arguments.seen))
    seen = key_ordinals(version, keys, arguments.by)
    rest = loader.listed(view, remaining_samples(view, seen, arguments.seed))
    # seen: int64 [keys]. -1: the earlier loader read a sample that this version excludes.
    excluded = int((seen < 0).sum())
    body = {
        "version": version.name,
        "list": rest.list_sha256,
        "view": rest.id,
        "samples": len(rest),
        "of": len(view),
        "seen": len(keys),
        "seen_excluded": excluded,
    }
    lines = [
        f"list {rest.list_sha256}",
        f"{len(rest)} of {len(view)} samples of {version.name} remain; {len(keys)} keys were seen, {excluded} of them "
        f"excluded from {version.name}",
        f'open it as loader.listed(view, "{rest.list_sha256}")',
    ]
    return body, lines_text(lines), 0


@verb(
    "list the rest of an epoch of MosaicML streaming",
    argument("ref", "version of the dataset's samples, registered or imported"),
    argument("url", "folder or bucket prefix of an index.json: the dataset's, or a split's"),
    argument("--batch-size", "samples of a rank's batch", type=int, required=True),
    argument("--nodes", type=int, default=1),
    argument("--ranks", "of a node (default: 1)", type=int, default=1),
    argument("--workers", "num_workers of the DataLoader (default: 0)", type=int, default=0),
    argument("--step", "first step to read, of the epoch or after --state", type=int, default=0),
    argument("--epoch", type=int, default=0),
    argument("--shuffle ALGO", "shuffle_algo (default: not shuffled)"),
    argument("--seed", "shuffle_seed (default: 9176, the library's)", type=int, default=9176),
    argument("--state FILE", "JSON of StreamingDataset.state_dict(), resumed from"),
    list_option("--option NAME=VALUE", "further argument of StreamingDataset, as JSON"),
    argument("--python", "interpreter that has mosaicml-streaming", default=sys.executable),
    FIELDS,
)
def run_streaming(arguments: Namespace) -> Answer:
    """List the samples that an epoch of MosaicML streaming has not read."""
    from loader.storage import open_store

    from ..formats.streaming_order import epoch_rest, ordinals_of_numbers, streaming_epoch

    for name in ("batch_size", "nodes", "ranks"):
        number = getattr(arguments, name)
        if number < 1:
            option = f"--{name.replace('_', '-')}"
            raise InvalidRuntime(
                f"{option} {number}: a number above 0 is needed",
                what=option,
                given=number,
                accepted="a number above 0",
            )
    version = loader.Root(arguments.root).open(arguments.ref)
    fields, where_present = choose_fields(version, arguments.fields)
    view = version.select(*fields, where_present=where_present)
    shuffle = {"shuffle_algo": arguments.shuffle} if arguments.shuffle else {}
    settings = {
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
    epoch = streaming_epoch(arguments.url, settings, arguments.python)
    numbers = epoch_rest(epoch.steps, arguments.step)
    rest = loader.listed(view, ordinals_of_numbers(version, numbers, open_store(arguments.url).url))
    batch = epoch.steps.shape[1]
    body = {
        "version": version.name,
        "list": rest.list_sha256,
        "view": rest.id,
        "samples": len(rest),
        "global_batch": batch,
        # Rounded up: the last, partial batch is a step too.
        "steps": -(-len(rest) // batch),
        "streaming": epoch.release,
    }
    lines = [
        f"list {rest.list_sha256}",
        f"{len(rest)} samples of {version.name} remain in {body['steps']} steps of {batch}, as "
        f"streaming {epoch.release} lays them out",
        f'open it as loader.listed(view, "{rest.list_sha256}"), in a plan with global_batch={batch}',
    ]
    return body, lines_text(lines), 0


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise InvalidRuntime(f"--option {text!r}: NAME=VALUE is needed")
    try:
        return name, parse_json(value.encode())
    # A word that is not JSON, such as py1e, is a string: a shell would eat its quotes.
    except ValueError:
        return name, value


def _state(file: str | None) -> Any:
    """Return the state_dict() of a StreamingDataset in a JSON file; None without one. Raises: InvalidRuntime."""
    if file is None:
        return None
    needed = {"epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed"}
    try:
        state = parse_json(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidRuntime(
            f"--state {file} cannot be read ({error}); name the JSON of a state_dict()"
        ) from None
    if not isinstance(state, dict) or not needed <= state.keys():
        raise InvalidRuntime(
            f"--state {file} is not a state of a StreamingDataset; needed: {', '.join(sorted(needed))}"
        )
    return state


PLANS_HEADER = ("plan", "saved (UTC)", "batch", "seed", "sources")
PLANS_FORM = ("{:<66}", "  {:<16}", " {:>7}", " {:>6}", "  {}")


@verb(
    "list plans: versions, and times of saving",
    argument("dataset", "only plans that read versions of this dataset", nargs="?"),
)
def ls_plans(arguments: Namespace) -> Answer:
    """List plans, newest first. Costs a request each."""
    from loader.api.plan_of import saved_plans
    from loader.storage.mirror import primary_store

    root = loader.Root(arguments.root)
    names = {record.id: record.name for dataset in root.datasets() for record in root.versions(dataset)}
    if arguments.dataset:
        root.versions(arguments.dataset)  # raises an error that names the closest dataset
    body = []
    for info, plan in saved_plans(primary_store(root.store)):
        sources = {name: _source(names, one["view"]) for name, one in plan["sources"].items()}
        if arguments.dataset and not any(
            one["version"].partition("@")[0] == arguments.dataset for one in sources.values()
        ):
            continue
        body.append(
            {
                "plan": info.key.removeprefix("plans/").removesuffix(".json"),
                "saved_us": info.modified_us,
                "global_batch": plan["global_batch"],
                "seed": plan["seed"],
                "sources": sources,
            }
        )
    body.sort(key=lambda row: (-(row["saved_us"] or 0), row["plan"]))
    if not body:
        return body, f"{root.url} has no saved plans", 0
    rows = []
    for row in body:
        saved = "-"  # a store without times of objects
        if row["saved_us"] is not None:
            saved = minute(row["saved_us"])
        sources_text = ", ".join(_words(name, one) for name, one in row["sources"].items())
        rows.append((row["plan"], saved, row["global_batch"], row["seed"], sources_text))
    return body, [Table(form=PLANS_FORM, header=PLANS_HEADER, rows=rows)], 0


def _source(names: Mapping[str, str], view: Mapping[str, Any]) -> dict[str, Any]:
    """Return version, fields and predicate of a plan's view, or of the view that it packs or lists."""
    # A packed view has its documents' view inside, a list the view that it lists; both nest.
    while "version" not in view:
        inner = view.get("documents") or view.get("view")
        if not isinstance(inner, Mapping):
            break
        view = inner
    version = str(view.get("version", ""))
    return {
        "version": names.get(version, version or str(view.get("kind"))),
        "fields": list(view.get("fields", ())),
        "where": view.get("where"),
        "slices": [_slice_words(term) for term in view.get("slices", ()) if isinstance(term, Mapping)],
    }


def _slice_words(term: Mapping[str, Any]) -> str:
    """Return a slice of a view as words, such as "in slice cups 2"."""
    words = "without slice" if term.get("without") else "in slice"
    return f"{words} {term.get('name')} {term.get('n')}"


def _words(name: str, source: Mapping[str, Any]) -> str:
    where = ""
    if source["where"]:
        where = f" where {source['where']}"
    for words in source["slices"]:
        where += f" {words}"
    return f"{name}: {source['version']}{where}"


ORDER_OF = Verb(
    text="list the rest of an epoch that another loader began",
    verbs={"seen": run_order_of_seen, "mds": run_streaming},
)
PLANS = Verb(
    text="list saved plans",
    verbs={"ls": ls_plans},
)
