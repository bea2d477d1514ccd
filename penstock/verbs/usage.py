"""`penstock usage`: GPU-hours, queue hours and failures, by who used them."""

import csv
import io
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import loader

from .verb import Answer, Table, Verb, cluster_argument, cluster_of, read_by

if TYPE_CHECKING:
    from ..compute.cluster import Cluster
    from ..train.run_usage import UsageRecord
    from ..usage.totals import UsageRow

BY = ("account", "user", "run", "dataset", "gpu")
FORM = ("{:<24}", " {:>7}", *(" {:>10}",) * 6, " {:>9}", " {:>10}", " {:>11}")
HEADER = (
    "",
    "starts",
    "asked",
    "allocated",
    "new steps",
    "lost",
    "other",
    "unknown",
    "queue h",
    "node h",
    "fail/1000 d",
)


def _arguments(parser: ArgumentParser) -> None:
    from ..units import parse_length

    cluster_argument(parser, "the cluster's file (default: runs of this machine)")
    parser.add_argument(
        "--since",
        type=read_by(parse_length),
        default=90 * 86_400.0,
        metavar="90d",
        help="length of the window that ends now (default: 90d)",
    )
    parser.add_argument("--by", choices=BY, default="account", help="one row per ... (default: account)")
    parser.add_argument("--price", type=float, default=None, metavar="2.10", help="price of a GPU-hour")
    parser.add_argument(
        "--forecast",
        action="store_true",
        help="extend the weekly totals by a line, up to 85 %% of what is installed",
    )
    parser.add_argument(
        "--installed",
        type=int,
        default=None,
        metavar="GPUS",
        help="GPUs installed (default: Slurm's sinfo says)",
    )
    parser.add_argument("--csv", action="store_true", help="print CSV")


def usage(arguments: Namespace) -> Answer:
    """Show what jobs and runs used."""
    from ..usage.totals import usage_by, usage_row

    until_us = time.time_ns() // 1000
    since_us = until_us - round(arguments.since * 1e6)
    record = _record(arguments, since_us, until_us)
    if arguments.forecast:
        return _forecast(arguments, record, since_us, until_us)
    rows = usage_by(arguments.by, record.starts, since_us, until_us)
    total = usage_row("total", record.starts, since_us, until_us)
    bodies = [_body(row, arguments.price) for row in (*rows, total)]
    body = {"since_us": since_us, "until_us": until_us, "by": arguments.by, "rows": bodies[:-1]}
    body |= {"total": bodies[-1], "problems": list(record.problems)}
    if arguments.csv:
        return body, _csv(bodies), int(bool(record.problems))
    header = (arguments.by, *HEADER[1:], *(["price"] if arguments.price is not None else []))
    cells = [_cells(row, arguments.price) for row in (*rows, total)]
    table = Table(form=(*FORM, " {:>12}")[: len(header)], header=header, rows=cells)
    lines = [
        "GPU-hours asked, allocated, in new steps, lost (repeated, waiting for data, idle), other, and unknown:"
    ]
    return body, [*lines, table, *record.problems], int(bool(record.problems))


def _record(arguments: Namespace, since_us: int, until_us: int) -> "UsageRecord":
    from ..train.run_usage import launcher_usage, slurm_usage
    from ..train.submitting import LAUNCHERS
    from ..usage.sacct import accounted_jobs

    root, cluster = loader.Root(arguments.root), cluster_of(arguments)
    if cluster is not None and cluster.engine == "slurm":
        jobs = accounted_jobs(_answer(cluster), since_us=since_us)
        return slurm_usage(root.store, jobs, until_us)
    launcher = LAUNCHERS["local" if cluster is None else cluster.engine](root.url)
    return launcher_usage(root.store, launcher, until_us)


def _forecast(arguments: Namespace, record: "UsageRecord", since_us: int, until_us: int) -> Answer:
    from ..usage.forecast import FULL, outlook
    from ..usage.installed import installed_gpus
    from ..usage.totals import weekly_gpu_hours

    installed, cluster = arguments.installed, cluster_of(arguments)
    if installed is None and cluster is not None and cluster.engine == "slurm":
        installed = installed_gpus(_answer(cluster))
    weeks = weekly_gpu_hours(record.starts, since_us, until_us)
    limit = None if not installed else installed * 7 * 24 * FULL
    body, text = outlook("GPU-hours", weeks, limit, until_us, "h")
    body |= {"installed": installed, "problems": list(record.problems)}
    return body, [text, *record.problems], int(bool(record.problems))


def _answer(cluster: "Cluster") -> "Callable[[Sequence[str]], str]":
    from ..compute.engines.slurm import SlurmQueue

    return SlurmQueue(cluster.submit).answer


def _body(row: "UsageRow", price: float | None) -> dict[str, Any]:
    body = {one.name: getattr(row, one.name) for one in fields(row)}
    body |= {"other": row.other, "failures_per_1000_node_days": row.failures_per_1000_node_days}
    body = {name: round(value, 3) if isinstance(value, float) else value for name, value in body.items()}
    return body if price is None else body | {"price": round(row.allocated * price, 2)}


def _cells(row: "UsageRow", price: float | None) -> list[str]:
    hours = (row.asked, row.allocated, row.new_steps, row.lost, row.other, row.unknown)
    rate = row.failures_per_1000_node_days
    return [
        row.name or "-",
        str(row.starts),
        *(f"{value:,.1f}" for value in (*hours, row.queue_hours, row.node_hours)),
        "-" if rate is None else f"{rate:,.1f}",
        *([] if price is None else [f"{row.allocated * price:,.2f}"]),
    ]


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


VERB = Verb(
    text="show GPU-hours, queue hours and failures, by who used them", run=usage, arguments=_arguments
)
