"""Formats' own libraries, each in its environment (`make oracles`)."""

import json
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def peer():
    """peer(name, ...) -> what `<name>_peer.py` prints in the environment of `<name>.txt`: a mapping for each line."""

    def run(name, *arguments):
        python = Path(os.environ.get("PENSTOCK_ORACLES", HERE.parents[1] / ".oracles")) / name / "bin/python"
        done = subprocess.run(
            [python, HERE / f"{name}_peer.py", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    return run
