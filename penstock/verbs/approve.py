"""`penstock approve DATASET [BATCH]`: what the gate stopped, and why; with a name and a reason, let it pass."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

import loader
from loader.errors import InvalidRuntime

from .verb import Answer, Verb

if TYPE_CHECKING:
    from ..approve import Stopped


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("dataset")
    parser.add_argument(
        "batch", nargs="?", default=None, help="e.g. 000003-1f0c9a2b; without: all that were stopped"
    )
    parser.add_argument(
        "--record", type=int, default=None, metavar="R", help="the verdict that you looked at"
    )
    parser.add_argument("--by", default=None, help="who approves it")
    parser.add_argument("--reason", default=None, help="why it may pass")


def run(arguments: Namespace) -> Answer:
    """List the stopped batches, or approve one where --record, --by and --reason are given."""
    from ..approve import approve, stopped_batches

    root = loader.Root(arguments.root)
    told = (arguments.record, arguments.by, arguments.reason)
    if all(value is None for value in told):
        stopped = stopped_batches(root, arguments.dataset, arguments.batch)
        text = "\n\n".join(map(_described, stopped)) or f"no batch of {arguments.dataset} is stopped"
        return [one.to_json() for one in stopped], text, 0
    if arguments.batch is None or any(value is None for value in told):
        raise InvalidRuntime(
            "an approval takes a batch, --record, --by and --reason; without the three it lists what was stopped"
        )
    made = approve(
        root,
        arguments.dataset,
        arguments.batch,
        record=arguments.record,
        by=arguments.by,
        reason=arguments.reason,
    )
    body = {
        "dataset": made.dataset,
        "batch": made.partition,
        "record": arguments.record,
        "approval": made.path,
        "approved_by": made.approved_by,
        "reason": made.reason,
        "checks": list(made.body["checks"]),
    }
    text = (
        f"{made.approved_by} approves batch {made.partition} of {made.dataset} though these failed: "
        f"{', '.join(body['checks'])}\n({made.path}). Run the batch again (job {made.dataset}_ingest), "
        "and then the release: the same samples pass."
    )
    return body, text, 0


def _described(one: "Stopped") -> str:
    record = one.record
    lines = [f"{record.dataset} {record.partition}: verdict {record.r}, run {record.run_id}"]
    for check in one.checks:
        mark = "  (nobody can approve it)" if check["name"] in one.never else ""
        lines.append(f"  {check['name']}{mark}: {check['explanation']}")
    if one.approval is not None:
        lines.append(f"  approved by {one.approval.approved_by}: {one.approval.reason}")
    elif not one.never:
        lines.append(
            f"  penstock approve {record.dataset} {record.partition} --record {record.r} --by NAME --reason WHY"
        )
    return "\n".join(lines)


VERB = Verb(
    text="let a batch pass that the gate stopped, with a name and a reason", run=run, arguments=arguments
)
