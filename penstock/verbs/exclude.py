"""`penstock exclude REF KEY... --reason R --by WHO`: the next version without these samples, and every later build.

`penstock exclude DATASET --list` tells the exclusions that stand.
"""

from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from typing import Any

import loader
from loader.errors import InvalidRuntime

from ..console.table import Table
from .verb import Answer, Verb, key_lines

FORM = ("{:<28}", "  {}", "  {:<5}", "  {:<12}", "  {}")


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("ref", help="version in which the samples were seen, e.g. photos@3")
    parser.add_argument("key", nargs="*", help="key of a sample")
    parser.add_argument(
        "--from", dest="file", metavar="FILE", help="file with a key per line; - is standard input"
    )
    parser.add_argument("--reason", help="why; readers of the version see it")
    parser.add_argument("--by", help="who decides it")
    parser.add_argument("--page", default="", metavar="URL", help="page where it was decided")
    parser.add_argument(
        "--whole-objects",
        action="store_true",
        help="everything cut of the same raw objects, now and under another policy",
    )
    parser.add_argument(
        "--withdraw",
        action="store_true",
        help="end the exclusions of these keys: later builds take the samples again",
    )
    parser.add_argument(
        "--list", action="store_true", help="the exclusions of the dataset that nobody withdrew"
    )


def run(arguments: Namespace) -> Answer:
    """Exclude samples, withdraw their exclusions, or list those that stand."""
    from ..upkeep.exclude import exclude, withdraw

    root = loader.Root(arguments.root)
    if arguments.list:
        if arguments.key or arguments.file or arguments.withdraw or arguments.whole_objects:
            raise InvalidRuntime("--list is of a dataset: give it alone, without keys and without --withdraw")
        return _listed(root, arguments.ref)
    if arguments.reason is None or arguments.by is None:
        raise InvalidRuntime("who excludes or takes back samples says so: pass --reason and --by")
    keys = [*arguments.key, *key_lines("--from", arguments.file)]
    told = {"reason": arguments.reason, "by": arguments.by, "page": arguments.page}
    if arguments.withdraw and arguments.whole_objects:
        raise InvalidRuntime(
            "--withdraw is of keys; name all keys of the objects, and leave --whole-objects out"
        )
    if arguments.withdraw:
        ended = withdraw(root, arguments.ref, keys, **told)
        text = (
            f"{len(ended.keys)} exclusions withdrawn ({ended.path})\nno version changes: later builds of "
            f"{ended.dataset} take the samples again"
        )
        return {"dataset": ended.dataset, "keys": list(ended.keys), "record": ended.path}, text, 0
    record, version = exclude(root, arguments.ref, keys, **told, whole_objects=arguments.whole_objects)
    is_new = version.manifest["producer"].get("exclusion") == record.path
    body = {
        "dataset": record.dataset,
        "keys": list(record.keys),
        "record": record.path,
        "name": version.name,
        "id": version.id,
        "samples": len(version),
    }
    lines = [
        f"{version.name}  {version.id}",
        f"{len(record.keys)} samples {'excluded' if is_new else 'were excluded before'}, {len(version)} remain",
        f"later builds leave them out too ({record.path}), until penstock exclude --withdraw",
    ]
    return body, "\n".join(lines), 0


def _listed(root: "loader.Root", ref: str) -> Answer:
    """Return the exclusions of a dataset that stand, by key; `live` where the newest version has the sample still."""
    from loader.dataset.versions.samples_table import live_ordinals

    from ..upkeep.exclusion import records, standing

    dataset = root.record(ref, retired=True).dataset
    stands, newest = standing(records(root.store, dataset)), root.state.newest(dataset)
    keys = sorted(stands)
    places = [-1] * len(keys)
    if keys and newest is not None:
        places = live_ordinals(root.open(newest.id), keys).tolist()
    body: list[dict[str, Any]] = [
        {
            "key": key,
            "live": place >= 0,
            **{name: getattr(one, name) for name in ("reason", "by", "page", "at_us", "version")},
            "record": one.path,
        }
        for key, place in zip(keys, places, strict=True)
        for one in stands[key]
    ]
    rows = [
        [
            one["key"],
            f"{datetime.fromtimestamp(one['at_us'] / 1e6, UTC):%Y-%m-%d %H:%M:%S}",
            "live" if one["live"] else "",
            one["by"],
            one["reason"],
        ]
        for one in body
    ]
    table = Table(form=FORM, header=("key", "excluded (UTC)     ", "", "by", "reason"), rows=rows)
    name = None if newest is None else newest.name
    told = {"dataset": dataset, "newest": name, "exclusions": body}
    return told, [table] if rows else f"no exclusion of {dataset} stands", 0


VERB = Verb(text="leave samples out, for a reason, in every later build", run=run, arguments=arguments)
