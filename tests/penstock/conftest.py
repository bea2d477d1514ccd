"""A root with a little history, and the command line as a process."""

import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import loader
from tests.servers.processes import python


@dataclass(frozen=True)
class Run:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(scope="session")
def penstock(tmp_path_factory):
    """A process: penstock(*arguments, root=..., cwd=...) -> Run; warnings are errors there too."""
    empty = tmp_path_factory.mktemp("cwd")

    def penstock(*arguments, root=None, cwd=empty, env=None):
        clean = {name: value for name, value in os.environ.items() if name != "PENSTOCK_ROOT"}
        done = python(
            "-W",
            "error",
            "-m",
            "penstock",
            *arguments,
            *(["--root", str(root)] if root else []),
            cwd=cwd,
            env={**clean, **(env or {})},
        )
        return Run(done.returncode, done.stdout, done.stderr)

    return penstock


@pytest.fixture
def cli(capsys):
    """The same in this process: cli(*arguments, root=...) -> Run."""
    from penstock.cli import main

    def cli(*arguments, root=None):
        try:
            code = main([*map(str, arguments), *(["--root", str(root)] if root else [])])
        except SystemExit as stop:  # argparse
            code = stop.code
        said = capsys.readouterr()
        return Run(code, said.out, said.err)

    return cli


def fill(path):
    """d@1: 10 samples; d@2: with 'emb'; d@3: without k1; d@4: 4 more, one column more; d@2 retired; names."""
    root = loader.Root(path)
    with root.write("d", part_samples=4, producer={"run_id": "r-1"}) as writer:
        for i in range(10):
            writer.add(
                f"k{i}",
                {"cls": i, "x.npy": np.full(3, i)},
                metadata={"w": i, "kind": "ab"[i % 2]},
                source={"raw_uri": f"s3://raw/{i}", "unit_id": f"u{i}"},
            )
    root.add_group("d", "emb", {"emb.npy": lambda sample: sample["x.npy"] * 2})
    root.exclude("d", ["k1"], reason="blurred")
    with root.write("d") as writer:
        for i in range(10, 14):
            writer.add(f"k{i}", {"cls": i, "x.npy": np.full(3, i)}, metadata={"w": i, "score": i / 2})
    root.tag("d@1", "paper")
    root.alias("d@4", "prod")
    root.retire("d@2", reason="leak")
    with root.write("other") as writer:
        writer.add("a", {"cls": 1})
    plan = loader.plan({"d": root.open("d@4").select("cls", "x.npy")}, seed=3, global_batch=6)
    plan.save(root)
    root.close()
    return plan.hash


@pytest.fixture(scope="session")
def sample_root(tmp_path_factory):
    """(path of a root that no test changes, hash of a plan saved there)."""
    path = tmp_path_factory.mktemp("filled") / "root"
    return str(path), fill(path)


@pytest.fixture
def own(tmp_path):
    """The path of such a root for one test to change."""
    fill(tmp_path / "own")
    return str(tmp_path / "own")
