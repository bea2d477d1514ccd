"""`penstock annotate|exclude|approve`: labels, exclusions and approvals."""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import InvalidRuntime

from ..progress import progress
from ..text import line_text, lines_text
from ..units import second
from .verb import Answer, Table, argument, exclusive_options, flag, key_lines, verb

if TYPE_CHECKING:
    from ..approvals import StoppedBatch
    from ..exclusion_records import Exclusion


@verb(
    "join labels from a file to the samples of a version",
    argument("ref", "e.g. photos@latest"),
    argument("name", "name of the annotation, e.g. labels-v2"),
    exclusive_options(
        argument("--from FILE", ".parquet, .jsonl, .csv or .tsv; path or URL", dest="rows"),
        argument("--set COLUMN=SQL", "compute one column, e.g. 'small = width_px < 256'", dest="computed"),
    ),
    argument("--author", "author of rows that have no annotated_by", required=True),
    argument("--key COLUMN", "the file's column of keys (default: key)", default="key"),
    argument(
        "--on COLUMN", "the samples' column: key (default), raw_key, path or another text", default="key"
    ),
    argument("--columns A,B", "columns of the file to add (default: all others)"),
    argument(
        "--nulls",
        "whether a null keeps or removes the present value",
        default="keep",
        choices=("keep", "remove"),
    ),
    flag("--strict", "refuse keys without a sample"),
    flag("--last-wins", "use the last row of a repeated key, instead of refusing it"),
)
def run_annotate(arguments: Namespace) -> Answer:
    root = loader.Root(arguments.root)
    rows = arguments.rows
    if arguments.computed is not None:
        rows = _compute_rows(root.open(arguments.ref), arguments.computed)
    if rows is None:
        raise InvalidRuntime("labels are needed: pass --from FILE, or --set COLUMN=SQL")
    done = root.annotate(
        arguments.ref,
        arguments.name,
        rows,
        author=arguments.author,
        key=arguments.key,
        on=arguments.on,
        columns=arguments.columns.split(",") if arguments.columns else None,
        nulls=arguments.nulls,
        strict=arguments.strict,
        last_wins=arguments.last_wins,
        watch=progress,
    )
    join = done.join
    version = done.version
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
    return body, lines_text(lines), 0


def _compute_rows(version: "loader.Version", text: str) -> Any:
    """Return the key and the value of an SQL expression of each live sample, as an Arrow table."""
    from loader.dataset.versions.samples_table import live_values

    name, equals, expression = text.partition("=")
    column = name.strip()
    if not equals or not column:
        raise InvalidRuntime(f"--set {text}: write COLUMN=SQL, such as 'small = width_px < 256'")
    values = live_values(version, [expression], f"--set {text}").to_series()
    keys = version.samples().select("key").collect()
    table = keys.with_columns(values.alias(column))
    return table.to_arrow()


EXCLUDE_FORM = ("{:<28}", "  {}", "  {:<5}", "  {:<12}", "  {}")


@verb(
    "leave samples out of this version and every later build, with a reason",
    argument("ref", "version that shows the samples, e.g. photos@3"),
    argument("key", "key of a sample", nargs="*"),
    argument("--from FILE", "file with a key per line; - is standard input", dest="file"),
    argument("--slice NAME", "samples of this slice; reason and name default to its own", dest="slice_name"),
    argument("--reason", "why; readers of the version see it"),
    argument("--by", "who decides it"),
    argument("--page URL", "page that documents the decision", default=""),
    flag("--whole-objects", "exclude every sample of the same raw objects, under any policy"),
    flag("--withdraw", "end the exclusions of these keys: later builds include the samples again"),
    flag("--list", "list the dataset's exclusions in force"),
)
def run_exclude(arguments: Namespace) -> Answer:
    """Exclude samples, withdraw exclusions, or list them."""
    from ..upkeep.exclusion import exclude, withdraw

    root = loader.Root(arguments.root)
    if arguments.list:
        others = (arguments.key, arguments.file, arguments.slice_name)
        if any(others) or arguments.withdraw or arguments.whole_objects:
            raise InvalidRuntime(
                "--list takes only a dataset: leave out keys, --from, --slice, --withdraw and --whole-objects"
            )
        return _exclusions_in_force(root, arguments.ref)
    if arguments.slice_name is not None:
        return _exclude_slice(root, arguments)
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
            f"{ended.dataset} include the samples again; import and register only once their objects change"
        )
        return {"dataset": ended.dataset, "keys": list(ended.keys), "record": ended.path}, text, 0
    record, version = exclude(root, arguments.ref, keys, **why, whole_objects=arguments.whole_objects)
    return _exclusion_answer(record, version)


def _exclude_slice(root: "loader.Root", arguments: Namespace) -> Answer:
    """Exclude the samples of --slice. Names the samples that the version lacks."""
    from ..upkeep.excluded_since import exclusion_slice
    from ..upkeep.exclusion import exclude_slice

    if arguments.key or arguments.file or arguments.withdraw or arguments.page:
        raise InvalidRuntime(
            "--slice names the samples, and its record is the page: leave out keys, --from, --withdraw and --page"
        )
    record, version, missing = exclude_slice(
        root,
        arguments.ref,
        arguments.slice_name,
        reason=arguments.reason,
        by=arguments.by,
        whole_objects=arguments.whole_objects,
    )
    body, text, exit_status = _exclusion_answer(record, version)
    body |= {
        "slice": exclusion_slice(record)[0],
        "gone": list(missing),
    }
    lines = [str(text)]
    lines += [f"  gone: {line_text(key)}" for key in missing]
    return body, "\n".join(lines), exit_status


def _exclusion_answer(record: "Exclusion", version: "loader.Version") -> Answer:
    # `exclude` returns the newest version unchanged if it has none of the samples.
    is_new = version.manifest["producer"].get("exclusion") == record.path
    body = {
        "dataset": record.dataset,
        "keys": list(record.keys),
        "record": record.path,
        "name": version.name,
        "id": version.id,
        "samples": len(version),
    }
    state = "excluded"
    if not is_new:  # also samples of stopped batches, which no version has
        state = "already excluded"
        if record.version_id == version.id:
            state = "excluded from later builds"
    lines = [
        f"{version.name}  {version.id}",
        f"{len(record.keys)} samples {state}, {len(version)} remain",
        f"later builds leave them out too ({record.path}); penstock exclude --withdraw ends this",
    ]
    return body, lines_text(lines), 0


def _exclusions_in_force(root: "loader.Root", ref: str) -> Answer:
    """`live` is true if the newest version still has the sample."""
    from loader.dataset.versions.samples_table import live_ordinals

    from ..exclusion_records import records, standing

    dataset = root.record(ref, retired=True).dataset
    stands = standing(records(root.store, dataset))
    newest = root.state.newest(dataset)
    keys = sorted(stands)
    # -1: the newest version lacks the key, or there is no version.
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
    name = None
    if newest is not None:
        name = newest.name
    exclusions = {"dataset": dataset, "newest": name, "exclusions": body}
    return exclusions, [table] if rows else f"{dataset} has no exclusions", 0


@verb(
    "let a batch that the gate stopped pass, with a name and a reason",
    argument("dataset"),
    argument("batch", "e.g. 000003-1f0c9a2b (default: all stopped batches)", nargs="?"),
    argument("--record R", "number of the verdict that you reviewed", type=int),
    argument("--by", "who approves it"),
    argument("--reason", "why it may pass"),
)
def run_approve(arguments: Namespace) -> Answer:
    """List the stopped batches, or approve one."""
    from ..approvals import approve, halted_batches

    root = loader.Root(arguments.root)
    decision = (arguments.record, arguments.by, arguments.reason)
    # Any one option means an approval: a forgotten one must be an error, not a listing with exit status 0.
    if all(value is None for value in decision):
        stopped = halted_batches(root, arguments.dataset, arguments.batch)
        text = "\n\n".join(map(_describe_stops, stopped)) or _none_stopped(root, arguments.dataset)
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


def _none_stopped(root: "loader.Root", dataset: str) -> str:
    """Return why there is nothing to approve."""
    from ..approvals import stops_before_the_gate
    from ..stages import VERDICTS, partitions

    n_judged = len(partitions(root.store, dataset, VERDICTS))
    lines = [f"the gate stops no batch of {dataset}: all {n_judged} that it judged passed or were approved"]
    return "\n".join([*lines, *stops_before_the_gate(root, dataset)])


def _describe_stops(stopped: "StoppedBatch") -> str:
    """Return a batch's failed checks, with its approval or the command that approves it."""
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
    return lines_text(lines)
