"""`penstock metrics`: figures of a root for Prometheus."""

import logging
from argparse import Namespace

import loader
from loader.errors import InvalidRuntime, MissingDependency

from ..places import check_root_or_records
from .verb import Answer, argument, flag, one_of, read_by, repeated, verb


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
    one_of(
        argument(
            "--listen HOST:PORT",
            "address to serve at (default: 127.0.0.1:9464)",
            type=read_by(_address),
            default=("127.0.0.1", 9464),
        ),
        argument("--textfile FILE", "write one file, for node_exporter's collector, and end"),
    ),
    flag("--cost", "also the cost of datasets, read once an hour: a request for each version, and more"),
    argument("--prices FILE", "with --cost: TOML file of prices (docs/operations.md)"),
    repeated("--allow-host NAME", "further host name of this server, such as a service's"),
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
