"""Dagster's pages over what the demo made, at http://127.0.0.1:3000: `python -m examples.demo.ui`."""

import argparse
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

import loader
from assets.arrivals.batch_manifests import batch_numbers, manifests
from examples.demo.next_steps import RED_NODE, print_automation
from examples.demo.pipeline import DATASET, write_settings
from examples.demo.show import line

WORKSPACE = Path(__file__).resolve().parents[2] / "workspace.yaml"


def main() -> int:
    """Becomes `dagster dev`; returns only when there is nothing to show."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo.ui", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--into", type=Path, default=Path("demo"))
    parser.add_argument("--port", type=int, default=3000)
    options = parser.parse_args()
    into: Path = options.into.resolve()
    if not (into / "root").is_dir():
        print(f"there is no demo in {into} yet: run make demo first", file=sys.stderr)
        return 1
    if _is_taken(options.port):
        print(
            f"port {options.port} is in use: end its program, or choose another: make ui PORT=<port>",
            file=sys.stderr,
        )
        return 1
    write_settings(into / "dagster_home")
    source = newest_source(into)
    os.environ["PENSTOCK_ROOT"] = str(into / "root")
    os.environ["PENSTOCK_LANDING"] = source
    os.environ["DAGSTER_HOME"] = str(into / "dagster_home")
    print_automation(source)
    if (into / "media").is_dir():
        line(RED_NODE)
    line(f"Open http://127.0.0.1:{options.port} once Dagster serves it. Ctrl-C ends it.")
    return _become(["-m", "dagster", "dev", "-w", str(WORKSPACE), "-h", "127.0.0.1", "-p", str(options.port)])


def newest_source(into: Path) -> str:
    """Return the folder or URL of the newest batch: the sensor looks where `make demo SOURCE=...` looked."""
    with loader.Root(into / "root") as root:
        newest = batch_numbers(root.store, DATASET)[-1:]
        batches = manifests(root.store, DATASET, newest)
    return batches[0].landing if batches else str(into / "raw")


def _is_taken(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _become(arguments: list[str]) -> NoReturn:
    # A shell without job control starts its background commands deaf to Ctrl-C, and that is inherited: not here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    raise SystemExit(main())
