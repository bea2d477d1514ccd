"""Formats' own libraries, each in its environment (`make oracles`)."""

import json
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def interpreter(name):
    """Return the Python of the environment of `<name>.txt`."""
    environments = os.environ.get("PENSTOCK_ORACLES", HERE.parents[1] / ".oracles")
    return Path(environments) / name / "bin/python"


@pytest.fixture(scope="session")
def interpreters():
    """interpreters(name) -> the Python of an environment."""
    return interpreter


@pytest.fixture(scope="session")
def peer():
    """peer(name, ...) -> what `<name>_peer.py` prints in the environment of `<name>.txt`: a mapping for each line.

    A folder `<name>_modules` stands on the path of its process and of those that it starts.
    """

    def run(name, *arguments):
        python = interpreter(name)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        modules = HERE / f"{name}_modules"
        if modules.is_dir():
            environment["PYTHONPATH"] = str(modules)
        done = subprocess.run(
            [python, HERE / f"{name}_peer.py", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    return run
