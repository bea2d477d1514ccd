"""`penstock annotate|exclude|approve`: labels, exclusions and approvals."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import InvalidRuntime

from ..progress import progress
from ..units import second
from .verb import Answer, Table, Verb, key_lines

if TYPE_CHECKING:
    from ..approvals import StoppedBatch


def _annotate_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ref", help="e.g. photos@latest")
    parser.add_argument("name", help="name of the annotation, e.g. labels-v2")
    parser.add_argument(
        "--from", dest="rows", required=True, metavar="FILE", help=".parquet, .jsonl or .csv; path or URL"
    )
    parser.add_argument("--author", required=True, help="author of rows that have no annotated_by")
    parser.add_argument(
        "--key", default="key", metavar="COLUMN", help="the file's column of keys (default: key)"
    )
    parser.add_argument(
        "--on",
        default="key",
        metavar="COLUMN",
        help="the samples' column: key (default), source_key, raw_key, unit_id ...",
    )
    parser.add_argument("--columns", metavar="A,B", help="columns of the file to add (default: all others)")
    parser.add_argument(
        "--nulls",
        default="keep",
        choices=("keep", "remove"),
        help="whether a null keeps or removes the present value",
    )
    parser.add_argument("--strict", action="store_true", help="refuse keys without a sample")
    parser.add_argument(
        "--last-wins", action="store_true", help="use the last row of a repeated key, instead of refusing it"
    )


def run_annotate(arguments: Namespace) -> Answer:
    done = loader.Root(arguments.root).annotate(
        arguments.ref,
        arguments.name,
        arguments.rows,
        author=arguments.author,
        key=arguments.key,
        on=arguments.on,
        columns=arguments.columns.split(",") if arguments.columns else None,
        nulls=arguments.nulls,
        strict=arguments.strict,
        last_wins=arguments.last_wins,
        watch=progress,
    )
    join, version = done.join, done.version
    lines = [f"{version.name}  {version.id}", f"{join.n_samples} samples annotated from {join.n_rows} rows"]
    if join.n_overruled:
        lines.append(f"{join.n_overruled} rows replaced by later rows of the same key")
    if join.n_unmatched:
        lines.append(f"{join.n_unmatched} keys have no live sample:")
        lines += [f"  {key!r} ({where})" for key, where in join.unmatched]
        lines += ["  ..."] if join.n_unmatched > len(join.unmatched) else []
    body = {
        "name": version.name,
        "id": version.id,
        "rows": join.n_rows,
        "samples": join.n_samples,
        "overruled": join.n_overruled,
        "unmatched": join.n_unmatched,
        "first_unmatched": [{"key": key, "at": where} for key, where in join.unmatched],
    }
    return body, "\n".join(lines), 0


EXCLUDE_FORM = ("{:<28}", "  {}", "  {:<5}", "  {:<12}", "  {}")


def _exclude_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ref", help="version that shows the samples, e.g. photos@3")
    parser.add_argument("key", nargs="*", help="key of a sample")
    parser.add_argument(
        "--from", dest="file", metavar="FILE", help="file with a key per line; - is standard input"
    )
    parser.add_argument("--reason", help="why; readers of the version see it")
    parser.add_argument("--by", help="who decides it")
    parser.add_argument("--page", default="", metavar="URL", help="page that documents the decision")
    parser.add_argument(
        "--whole-objects",
        action="store_true",
        help="exclude every sample of the same raw objects, under any policy",
    )
    parser.add_argument(
        "--withdraw",
        action="store_true",
        help="end the exclusions of these keys: later builds include the samples again",
    )
    parser.add_argument("--list", action="store_true", help="list the dataset's exclusions in force")


def run_exclude(arguments: Namespace) -> Answer:
    """Exclude samples, withdraw exclusions, or list them."""
    from ..upkeep.exclusion import exclude, withdraw

    root = loader.Root(arguments.root)
    if arguments.list:
        if arguments.key or arguments.file or arguments.withdraw or arguments.whole_objects:
            raise InvalidRuntime(
                "--list takes only a dataset: leave out keys, --from, --withdraw and --whole-objects"
            )
        return _exclusions_in_force(root, arguments.ref)
    if arguments.reason is None or arguments.by is None:
        raise InvalidRuntime(
            "an exclusion or its withdrawal needs a reason and a name: pass --reason and --by"
        )
    keys = [*arguments.key, *key_lines("--from", arguments.file)]
    why = {"reason": arguments.reason, "by": arguments.by, "page": arguments.page}
    if arguments.withdraw and arguments.whole_objects:
        raise InvalidRuntime(
            "--withdraw takes keys: name all keys of the objects, and leave --whole-objects out"
        )
    if arguments.withdraw:
        ended = withdraw(root, arguments.ref, keys, **why)
        text = (
            f"{len(ended.keys)} exclusions withdrawn ({ended.path})\nNo version changes: later builds of "
            f"{ended.dataset} include the samples again"
        )
        return {"dataset": ended.dataset, "keys": list(ended.keys), "record": ended.path}, text, 0
    record, version = exclude(root, arguments.ref, keys, **why, whole_objects=arguments.whole_objects)
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
        f"{len(record.keys)} samples {'excluded' if is_new else 'already excluded'}, {len(version)} remain",
        f"later builds leave them out too ({record.path}); penstock exclude --withdraw ends this",
    ]
    return body, "\n".join(lines), 0


def _exclusions_in_force(root: "loader.Root", ref: str) -> Answer:
    """`live` is true if the newest version still has the sample."""
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
            second(one["at_us"]),
            "live" if one["live"] else "",
            one["by"],
            one["reason"],
        ]
        for one in body
    ]
    table = Table(form=EXCLUDE_FORM, header=("key", "excluded (UTC)     ", "", "by", "reason"), rows=rows)
    name = None if newest is None else newest.name
    exclusions = {"dataset": dataset, "newest": name, "exclusions": body}
    return exclusions, [table] if rows else f"{dataset} has no exclusions", 0


def _approve_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("dataset")
    parser.add_argument(
        "batch", nargs="?", default=None, help="e.g. 000003-1f0c9a2b (default: all stopped batches)"
    )
    parser.add_argument(
        "--record", type=int, default=None, metavar="R", help="number of the verdict that you reviewed"
    )
    parser.add_argument("--by", default=None, help="who approves it")
    parser.add_argument("--reason", default=None, help="why it may pass")


def run_approve(arguments: Namespace) -> Answer:
    """List the stopped batches, or approve one."""
    from ..approvals import approve, stopped_batches

    root = loader.Root(arguments.root)
    decision = (arguments.record, arguments.by, arguments.reason)
    if all(value is None for value in decision):
        stopped = stopped_batches(root, arguments.dataset, arguments.batch)
        text = "\n\n".join(map(_described, stopped)) or f"no batch of {arguments.dataset} is stopped"
        return [one.to_json() for one in stopped], text, 0
    if arguments.batch is None or any(value is None for value in decision):
        raise InvalidRuntime(
            "an approval needs a batch, --record, --by and --reason; without the options the verb lists stopped batches"
        )
    approval = approve(
        root,
        arguments.dataset,
        arguments.batch,
        record=arguments.record,
        by=arguments.by,
        reason=arguments.reason,
    )
    body = {
        "dataset": approval.dataset,
        "batch": approval.partition,
        "record": arguments.record,
        "approval": approval.path,
        "approved_by": approval.approved_by,
        "reason": approval.reason,
        "checks": list(approval.body["checks"]),
    }
    text = (
        f"{approval.approved_by} approves batch {approval.partition} of {approval.dataset} though these failed: "
        f"{', '.join(body['checks'])}\n({approval.path}). Run the batch again (job {approval.dataset}_ingest), "
        "and then the release: the same samples pass."
    )
    return body, text, 0


def _described(stopped: "StoppedBatch") -> str:
    record = stopped.record
    lines = [f"{record.dataset} {record.partition}: verdict {record.r}, run {record.run_id}"]
    for check in stopped.checks:
        mark = "  (cannot be approved)" if check["name"] in stopped.never else ""
        lines.append(f"  {check['name']}{mark}: {check['explanation']}")
    if stopped.approval is not None:
        lines.append(f"  approved by {stopped.approval.approved_by}: {stopped.approval.reason}")
    elif not stopped.never:
        lines.append(
            f"  penstock approve {record.dataset} {record.partition} --record {record.r} --by NAME --reason WHY"
        )
    return "\n".join(lines)


ANNOTATE = Verb(
    text="join labels from a file to the samples of a version",
    run=run_annotate,
    arguments=_annotate_arguments,
)
EXCLUDE = Verb(
    text="leave samples out of this version and every later build, with a reason",
    run=run_exclude,
    arguments=_exclude_arguments,
)
APPROVE = Verb(
    text="let a batch that the gate stopped pass, with a name and a reason",
    run=run_approve,
    arguments=_approve_arguments,
)
