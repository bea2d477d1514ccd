"""Dagster's pages over what the demo made, at http://127.0.0.1:3000: `python -m examples.demo.ui`."""

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from examples.demo.pipeline import write_settings

WORKSPACE = Path(__file__).resolve().parents[2] / "workspace.yaml"


def main() -> int:
    """Becomes `dagster dev`; returns only when there is nothing to show."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo.ui", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--into", type=Path, default=Path("demo"))
    parser.add_argument("--port", default="3000")
    options = parser.parse_args()
    into: Path = options.into.resolve()
    if not (into / "root").is_dir():
        print(f"there is no demo in {into} yet: run make demo first", file=sys.stderr)
        return 1
    write_settings(into / "dagster_home")
    places = {"PENSTOCK_ROOT": "root", "PENSTOCK_LANDING": "raw", "DAGSTER_HOME": "dagster_home"}
    os.environ.update({name: str(into / folder) for name, folder in places.items()})
    return _become(["-m", "dagster", "dev", "-w", str(WORKSPACE), "-h", "127.0.0.1", "-p", options.port])


def _become(arguments: list[str]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    raise SystemExit(main())
