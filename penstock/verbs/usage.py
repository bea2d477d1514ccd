"""`penstock usage|metrics`: what a root and its trainings cost, as a table and for Prometheus."""

import csv
import io
import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import loader
from loader.errors import InvalidRuntime, MissingDependency

from ..places import check_root_or_records
from ..text import line_text, terminal_text
from ..units import parse_length, parse_size, size, utc_us
from .verb import (
    Answer,
    Table,
    argument,
    argument_type,
    cluster_argument,
    exclusive_options,
    flag,
    list_option,
    parse_cluster,
    verb,
)

if TYPE_CHECKING:
    from ..compute.cluster import Cluster
    from ..train.goodput.run_usage import UsageRecord
    from ..usage.totals import UsageRow

BY = ("account", "user", "run", "dataset", "gpu", "owner")
COST_BY = ("dataset", "owner")
"""Ways to group that have the cost of stored bytes and of trainings."""
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
        "length of the period that ends now (default: 90d)",
        type=argument_type(parse_length),
        default=90 * 86_400.0,
    ),
    argument(
        "--by WHAT",
        f"row per {', '.join(BY)} (default: account); with --stored per {', '.join(STORED_BY)} (default: dataset)",
        choices=tuple(dict.fromkeys((*BY, *STORED_BY))),
    ),
    flag("--stored", "bytes of versions in place of GPU-hours, shared bytes once"),
    list_option(
        "--price-gb [SCHEME=]USD",
        "with --stored: price per GiB and month, for roots of a URL scheme such as s3=0.023",
        type=argument_type(_price),
    ),
    argument("--price 2.10", "price of a GPU-hour", type=argument_type(_usd)),
    argument("--prices FILE", "with --by dataset or owner: TOML file of prices (docs/operations.md)"),
    flag("--forecast", "extend the weekly totals by a line, up to 85 %% of what is installed"),
    argument(
        "--installed GPUS", "GPUs installed (default: sinfo's count); with --stored a size, such as 500TiB"
    ),
    flag("--csv", "print CSV"),
)
def usage(arguments: Namespace) -> Answer:
    """Show what jobs and runs used."""
    from ..usage.totals import group_usage, usage_row

    until_us = utc_us()
    if arguments.prices and (arguments.stored or arguments.forecast or arguments.by not in COST_BY):
        raise InvalidRuntime(f"--prices is for --by {' or '.join(COST_BY)}, without --stored and --forecast")
    if arguments.stored:
        return _stored_answer(arguments, until_us)
    by = _group_option(arguments, BY)
    # --since 100y would begin before 1970, where no record lies.
    since_us = max(0, until_us - round(arguments.since * 1e6))
    record = _record(arguments, since_us, until_us)
    if arguments.forecast:
        return _forecast(arguments, record, since_us, until_us)
    if by == "owner":
        return _cost(arguments, record, since_us, until_us)
    rows = group_usage(by, record.starts, since_us, until_us)
    total = usage_row("total", record.starts, since_us, until_us)
    bodies = [_body(row, arguments.price) for row in (*rows, total)]
    body = {"since_us": since_us, "until_us": until_us, "by": by, "rows": bodies[:-1]}
    body |= {"total": bodies[-1], "problems": list(record.problems)}
    if arguments.csv:
        return body, _csv_with_problems(bodies, record.problems), int(bool(record.problems))
    header = (by, *HEADER[1:], *(["price"] if arguments.price is not None else []))
    cells = [_cells(row, arguments.price) for row in (*rows, total)]
    # The form always has the price's column; without --price the header is one shorter.
    table = Table(form=(*FORM, " {:>12}")[: len(header)], header=header, rows=cells)
    lines = [
        "GPU-hours asked, allocated, in new steps, lost (repeated, waiting for data, idle), other, and unknown:"
    ]
    answer: list[str | Table] = [*lines, table]
    if by == "dataset":
        cost, cost_text, status = _cost(arguments, record, since_us, until_us)
        body |= {"cost": cost["cost"], "problems": cost["problems"]}
        return body, [*answer, "", *cost_text], status
    return body, [*answer, *map(line_text, record.problems)], int(bool(record.problems))


def _cost(arguments: Namespace, record: "UsageRecord", since_us: int, until_us: int) -> Answer:
    """Return bytes, requests and GPU-hours per owner, with --by owner, else per dataset.

    Versions that no owner named have the row "-". record: starts that the launcher's or scheduler's accounting has.
    """
    from ..train.goodput.run_usage import record_starts
    from ..usage.cost import group_costs
    from ..usage.prices import read_prices
    from ..usage.stored import stored_bytes

    by = "owner" if arguments.by == "owner" else "dataset"
    prices = None
    if arguments.prices:
        prices = read_prices(arguments.prices)
    root = loader.Root(arguments.root)
    stored = stored_bytes(root.store, root.state)
    # Runs that other launchers, or none of penstock's, started have no times but their record's.
    counted = {start.run for start in record.starts}
    recorded = record_starts(root.store, counted)
    starts = [*record.starts, *recorded.starts]
    problems = [*record.problems, *recorded.problems]
    rows = group_costs(by, stored, starts, since_us, until_us)  # type: ignore[arg-type]
    bodies = [row.to_json(prices) for row in rows]
    header = [by, "versions", "stored", "frees", "registered", "requests", "read", "GPU-hours"]
    form = ["{:<24}", " {:>8}", *[" {:>11}"] * 6]
    price_names = ("stored_price_per_month", "freed_price_per_month", "read_price")
    if prices is not None:
        header += [f"{prices.currency}/month", "frees/month", prices.currency]
        form += [" {:>11}"] * 3
    cells = []
    for row, body in zip(rows, bodies, strict=True):
        own: list[object] = [row.name or "-", row.versions]
        own += map(size, (row.nbytes, row.frees, row.registered))
        own += [f"{row.requests:,.0f}", size(row.read_nbytes), f"{row.gpu_hours:,.1f}"]
        if prices is not None:
            own += [f"{body[name]:,.2f}" for name in price_names]
        cells.append(own)
    text = "stored bytes, shared ones once; frees: if all versions of the row are retired; and trainings that read it:"
    lines: list[str | Table] = [text, Table(form=form, header=header, rows=cells)]
    answer = {"since_us": since_us, "until_us": until_us, "by": by, "cost": bodies, "problems": problems}
    # With --csv, `run_usage` writes the GPU-hours of --by dataset, and does not come here.
    if arguments.csv and arguments.by == "owner":
        csv_rows = bodies or [{"name": ""}]  # the header of a file without owners
        return answer, _csv_with_problems(csv_rows, problems), int(bool(problems))
    return answer, [*lines, *map(line_text, problems)], int(bool(problems))


def _record(arguments: Namespace, since_us: int, until_us: int) -> "UsageRecord":
    """Return the starts of trainings, by Slurm's accounting or by the launcher's records.

    since_us: bounds what Slurm's accounting is asked for. The launcher's records are read whole.
    """
    from ..compute.cluster import Cluster
    from ..train.goodput.run_usage import launcher_usage, slurm_usage
    from ..train.launch.slurm_job import SlurmJobs
    from ..train.submitting import record_launcher
    from ..usage.sacct import account_jobs

    root = loader.Root(arguments.root)
    cluster = parse_cluster(arguments)
    check_root_or_records(root.store, "runs")
    if cluster is not None and cluster.engine == "slurm":
        jobs = account_jobs(_command_runner(cluster), since_us=since_us)
        return slurm_usage(root.store, jobs, until_us, SlurmJobs(root.url, cluster).rank_starts)
    if cluster is None:
        cluster = Cluster()  # this machine
    launcher = record_launcher(root.url, cluster)
    return launcher_usage(root.store, launcher, until_us)


def _forecast(arguments: Namespace, record: "UsageRecord", since_us: int, until_us: int) -> Answer:
    from ..usage.forecast import FULL, outlook
    from ..usage.sacct import count_gpus
    from ..usage.totals import weekly_gpu_hours

    installed = _gpus(arguments.installed)
    cluster = parse_cluster(arguments)
    if installed is None and cluster is not None and cluster.engine == "slurm":
        installed = count_gpus(_command_runner(cluster))
    weeks = weekly_gpu_hours(record.starts, since_us, until_us)
    limit = None
    if installed:
        # Weeks are in GPU-hours, hence 7 * 24.
        limit = installed * 7 * 24 * FULL
    body, text = outlook("GPU-hours", weeks, limit, until_us, "h")
    body |= {"installed": installed, "problems": list(record.problems)}
    return body, [text, *map(line_text, record.problems)], int(bool(record.problems))


def _stored_answer(arguments: Namespace, until_us: int) -> Answer:
    from ..usage.forecast import FULL, outlook
    from ..usage.stored import stored_bytes

    by = _group_option(arguments, STORED_BY)
    root = loader.Root(arguments.root)
    stored = stored_bytes(root.store, root.state)
    if arguments.forecast:
        limit = None
        if arguments.installed:
            limit = parse_size(arguments.installed) * FULL / 2**30
        gib = [nbytes / 2**30 for nbytes in stored.weekly(until_us)]
        body, text = outlook("stored bytes", gib, limit, until_us, "GiB")
        return body, text, 0
    price = dict(arguments.price_gb)
    # A price for the root's scheme wins over the price for any.
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


def _group_option(arguments: Namespace, accepted: Sequence[str]) -> str:
    """Return the way to group. Raises: InvalidRuntime if it belongs to the other kind of usage."""
    by = arguments.by or accepted[0]
    if by not in accepted:
        other = "without --stored" if arguments.stored else "with --stored"
        raise InvalidRuntime(f"--by {by} is {other}; accepted here: {', '.join(accepted)}")
    return str(by)


def _gpus(text: str | None) -> int | None:
    if text is not None and not (text.isascii() and text.isdigit()):
        raise InvalidRuntime(f"--installed {text}: a whole number of GPUs is needed; sizes are for --stored")
    if text is None:
        return None
    return int(text)


def _command_runner(cluster: "Cluster") -> "Callable[[Sequence[str]], str]":
    """Return a function that runs a Slurm command and returns its output."""
    from ..compute.engines.slurm import SlurmQueue

    return SlurmQueue(cluster.submit).answer


def _body(row: "UsageRow", price: float | None) -> dict[str, Any]:
    body = {one.name: getattr(row, one.name) for one in fields(row)}
    body |= {"other": row.other, "failures_per_1000_node_days": row.failures_per_1000_node_days}
    body = {name: round(value, 3) if isinstance(value, float) else value for name, value in body.items()}
    if price is None:
        return body
    return body | {"price": round(row.allocated * price, 2)}


def _cells(row: "UsageRow", price: float | None) -> list[str]:
    """Return a row of the table, in the order of `HEADER`. price: of a GPU-hour; None leaves out the last cell."""
    hours = (row.asked, row.allocated, row.new_steps, row.lost, row.other, row.unknown)
    rate = row.failures_per_1000_node_days
    return [
        row.name or "-",
        str(row.starts),
        *(f"{value:,.1f}" for value in (*hours, row.queue_hours, row.node_hours)),
        "-" if rate is None else f"{rate:,.1f}",
        *([] if price is None else [f"{row.allocated * price:,.2f}"]),
    ]


def _csv_with_problems(rows: list[dict[str, Any]], problems: Sequence[str]) -> str:
    """Return the rows as CSV, and print problems to standard error, which no table takes in."""
    for problem in problems:
        print(terminal_text(f"penstock: {problem}"), file=sys.stderr)
    return _csv(rows)


def _csv(rows: list[dict[str, Any]]) -> str:
    """Return rows as CSV. rows: at least one; the first one's names are the header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


def _address(text: str) -> tuple[str, int]:
    from ..metrics.exporter import parse_address

    return parse_address(text)


def check_packages() -> None:
    """Raise MissingDependency, which names the extra to install."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            "penstock metrics needs the package 'prometheus_client', which is not installed: "
            "pip install 'penstock-data[metrics]'"
        ) from error


@verb(
    "serve metrics for Prometheus",
    argument("roots ROOT", "path or URL of a root (default: --root)", nargs="*"),
    exclusive_options(
        argument(
            "--listen HOST:PORT",
            "address to serve at (default: 127.0.0.1:9464)",
            type=argument_type(_address),
            default=("127.0.0.1", 9464),
        ),
        argument("--textfile FILE", "write one file, for node_exporter's collector, and end"),
    ),
    flag("--cost", "also the cost of datasets, read once an hour: a request for each version, and more"),
    argument("--prices FILE", "with --cost: TOML file of prices (docs/operations.md)"),
    list_option("--allow-host NAME", "further host name of this server, such as a service's"),
)
def metrics(arguments: Namespace) -> Answer:
    """Serve until SIGINT or SIGTERM; with --textfile, write once. Exit status 1: a part could not be read whole."""
    check_packages()
    from ..metrics.exporter import serve, write_textfile
    from ..metrics.families import RootCollector
    from ..usage.prices import read_prices

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    errors: dict[str, str] = {}

    def on_error(part: str, error: str) -> None:
        # Keyed by part, so a part that fails at every scrape has one line.
        errors[part] = error

    roots = [loader.Root(url) for url in arguments.roots or [arguments.root]]
    for root in roots:
        check_root_or_records(root.store, "runs")
    prices = None
    if arguments.prices:
        if not arguments.cost:
            raise InvalidRuntime("--prices needs --cost")
        prices = read_prices(arguments.prices)
    collector = RootCollector(
        roots,
        on_error,
        has_cost=arguments.cost,
        prices=prices,
    )
    if arguments.textfile:
        write_textfile([collector], arguments.textfile)
        body = {"textfile": arguments.textfile, "errors": errors}
        return body, f"wrote {arguments.textfile}", int(bool(errors))
    serve([collector], arguments.listen, allow_hosts=arguments.allow_host, announce=_announce)
    return {}, "", 0


def _announce(line: str) -> None:
    print(line, flush=True)
