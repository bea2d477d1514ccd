"""Prometheus metrics of the pipeline.

    python -m dagster_project.metrics --listen 127.0.0.1:9464          # serve /metrics
    python -m dagster_project.metrics --textfile /var/lib/node_exporter/penstock.prom

With --textfile, the exit status is 1 if a dataset failed.
"""

import argparse
import logging
import signal
import sys
import threading

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile

import loader
from assets.metrics import PipelineCollector
from dagster_project.datasets import specs
from dagster_project.own_datasets import load_datasets

_log = logging.getLogger("penstock.metrics")


def main(arguments: list[str] | None = None) -> int:
    """Serve metrics until a signal; with --textfile, write them once."""
    parser = argparse.ArgumentParser(
        prog="python -m dagster_project.metrics", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--root", help="path or URL (default: PENSTOCK_ROOT)")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--listen", type=_address, metavar="HOST:PORT")
    where.add_argument("--textfile", metavar="FILE", help="write one file, for node_exporter's collector")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    registry, failed = CollectorRegistry(auto_describe=False), list[str]()

    def on_error(dataset: str, error: Exception) -> None:
        failed.append(dataset)
        _log.error("%s: %s", dataset, error)

    own, broken = load_datasets()
    for entry in broken:
        _log.error("dataset not loaded: %s: %s", entry.where, entry.error)
    datasets = [spec.name for spec in (*specs(), *(one.spec for one in own))]
    with loader.Root(options.root) as root:
        registry.register(PipelineCollector(root, datasets, on_error))
        if options.textfile:
            write_to_textfile(options.textfile, registry)
            return int(bool(failed))
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        host, port = options.listen
        server, thread = start_http_server(port, host, registry)
        _log.info("metrics of %s at http://%s:%d/metrics", root.url, host, server.server_port)
        ended.wait()
        server.shutdown()
        server.server_close()
        thread.join()
    return 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: HOST:PORT, e.g. 127.0.0.1:9464")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    sys.exit(main())
