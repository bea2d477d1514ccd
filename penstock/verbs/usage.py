"""`penstock usage`: GPU-hours, queue hours and failures, by who used them."""

import csv
import io
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import loader
from loader.errors import InvalidRuntime

from ..places import check_root_or_records
from ..text import line_text
from ..units import parse_length, parse_size, size, utc_us
from .verb import Answer, Table, argument, cluster_argument, cluster_of, flag, read_by, repeated, verb

if TYPE_CHECKING:
    from ..compute.cluster import Cluster
    from ..train.run_usage import UsageRecord
    from ..usage.totals import UsageRow

BY = ("account", "user", "run", "dataset", "gpu")
STORED_BY = ("dataset", "version", "owner")
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


def _price(text: str) -> tuple[str, float]:
    """Return URL scheme, "" for any, and USD. Raises: ValueError."""
    scheme, _, number = text.rpartition("=")
    return scheme, _usd(number)


def _usd(text: str) -> float:
    """Return USD. Raises: ValueError."""
    price = float(text)
    if not 0 <= price < 1e6:
        raise ValueError(f"{text!r}: a price of 0 or more is needed, such as 0.023")
    return price


@verb(
    "show GPU-hours, queue hours, failures and stored bytes",
    cluster_argument("the cluster's file (default: runs of this machine)"),
    argument(
        "--since 90d",
        "length of the window that ends now (default: 90d)",
        type=read_by(parse_length),
        default=90 * 86_400.0,
    ),
    argument(
        "--by WHAT",
        f"row per {', '.join(BY)} (default: account); with --stored per {', '.join(STORED_BY)} (default: dataset)",
        choices=(*BY, *STORED_BY[1:]),
    ),
    flag("--stored", "bytes of versions in place of GPU-hours, shared bytes once"),
    repeated(
        "--price-gb [SCHEME=]USD",
        "with --stored: price per GiB and month, for roots of a URL scheme such as s3=0.023",
        type=read_by(_price),
    ),
    argument("--price 2.10", "price of a GPU-hour", type=read_by(_usd)),
    flag("--forecast", "extend the weekly totals by a line, up to 85 %% of what is installed"),
    argument(
        "--installed GPUS", "GPUs installed (default: sinfo's count); with --stored a size, such as 500TiB"
    ),
    flag("--csv", "print CSV"),
)
def usage(arguments: Namespace) -> Answer:
    """Show what jobs and runs used."""
    from ..usage.totals import usage_by, usage_row

    until_us = utc_us()
    if arguments.stored:
        return _stored(arguments, until_us)
    by = _by(arguments, BY)
    since_us = max(0, until_us - round(arguments.since * 1e6))
    record = _record(arguments, since_us, until_us)
    if arguments.forecast:
        return _forecast(arguments, record, since_us, until_us)
    rows = usage_by(by, record.starts, since_us, until_us)
    total = usage_row("total", record.starts, since_us, until_us)
    bodies = [_body(row, arguments.price) for row in (*rows, total)]
    body = {"since_us": since_us, "until_us": until_us, "by": by, "rows": bodies[:-1]}
    body |= {"total": bodies[-1], "problems": list(record.problems)}
    if arguments.csv:
        return body, _csv(bodies), int(bool(record.problems))
    header = (by, *HEADER[1:], *(["price"] if arguments.price is not None else []))
    cells = [_cells(row, arguments.price) for row in (*rows, total)]
    table = Table(form=(*FORM, " {:>12}")[: len(header)], header=header, rows=cells)
    lines = [
        "GPU-hours asked, allocated, in new steps, lost (repeated, waiting for data, idle), other, and unknown:"
    ]
    return body, [*lines, table, *map(line_text, record.problems)], int(bool(record.problems))


def _record(arguments: Namespace, since_us: int, until_us: int) -> "UsageRecord":
    from ..compute.cluster import Cluster
    from ..train.launch.slurm_job import SlurmJobs
    from ..train.run_usage import launcher_usage, slurm_usage
    from ..train.submitting import launcher_of
    from ..usage.sacct import accounted_jobs

    root, cluster = loader.Root(arguments.root), cluster_of(arguments)
    check_root_or_records(root.store, "runs")
    if cluster is not None and cluster.engine == "slurm":
        jobs = accounted_jobs(_answer(cluster), since_us=since_us)
        return slurm_usage(root.store, jobs, until_us, SlurmJobs(root.url, cluster).rank_starts)
    launcher = launcher_of(root.url, cluster or Cluster())
    return launcher_usage(root.store, launcher, until_us)


def _forecast(arguments: Namespace, record: "UsageRecord", since_us: int, until_us: int) -> Answer:
    from ..usage.forecast import FULL, outlook
    from ..usage.sacct import installed_gpus
    from ..usage.totals import weekly_gpu_hours

    installed, cluster = _gpus(arguments.installed), cluster_of(arguments)
    if installed is None and cluster is not None and cluster.engine == "slurm":
        installed = installed_gpus(_answer(cluster))
    weeks = weekly_gpu_hours(record.starts, since_us, until_us)
    limit = None if not installed else installed * 7 * 24 * FULL
    body, text = outlook("GPU-hours", weeks, limit, until_us, "h")
    body |= {"installed": installed, "problems": list(record.problems)}
    return body, [text, *map(line_text, record.problems)], int(bool(record.problems))


def _stored(arguments: Namespace, until_us: int) -> Answer:
    from ..usage.forecast import FULL, outlook
    from ..usage.stored import stored_bytes

    by, root = _by(arguments, STORED_BY), loader.Root(arguments.root)
    stored = stored_bytes(root.store, root.state)
    if arguments.forecast:
        limit = parse_size(arguments.installed) * FULL / 2**30 if arguments.installed else None
        gib = [nbytes / 2**30 for nbytes in stored.weekly(until_us)]
        body, text = outlook("stored bytes", gib, limit, until_us, "GiB")
        return body, text, 0
    price = dict(arguments.price_gb)
    usd = price.get(urlsplit(root.url).scheme or "file", price.get(""))
    rows = stored.rows(by)
    bodies = [
        asdict(row) | ({} if usd is None else {"usd_per_month": round(row.nbytes / 2**30 * usd, 4)})
        for row in rows
    ]
    if arguments.csv:
        return bodies, _csv(bodies), 0
    cells = [
        (
            row.name or "-",
            row.versions,
            *map(size, (row.nbytes, row.frees, row.registered)),
            body.get("usd_per_month"),
        )
        for row, body in zip(rows, bodies, strict=True)
    ]
    columns = 5 + (usd is not None)
    header = (by, "versions", "stored", "frees", "registered", "USD/month")[:columns]
    form = ("{:<24}", " {:>8}", " {:>12}", " {:>12}", " {:>12}", " {:>12}")[:columns]
    text = f"{size(stored.nbytes)} in {root.url}, shared bytes once, with the oldest version; frees: if a row goes"
    return (
        {"by": by, "nbytes": stored.nbytes, "rows": bodies},
        [text, Table(form=form, header=header, rows=cells)],
        0,
    )


def _by(arguments: Namespace, accepted: Sequence[str]) -> str:
    """Return the way to group. Raises: InvalidRuntime if it belongs to the other kind of usage."""
    by = arguments.by or accepted[0]
    if by not in accepted:
        other = "without --stored" if arguments.stored else "with --stored"
        raise InvalidRuntime(f"--by {by} is {other}; accepted here: {', '.join(accepted)}")
    return str(by)


def _gpus(text: str | None) -> int | None:
    if text is not None and not (text.isascii() and text.isdigit()):
        raise InvalidRuntime(f"--installed {text}: a whole number of GPUs is needed; sizes are for --stored")
    return None if text is None else int(text)


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
