"""A torch whose weights_only=True can be got past opens no checkpoint."""

import re
import tomllib
from pathlib import Path

import pytest
import torch

import loader
from loader.errors import MissingDependency
from penstock.checkpoints import Checkpoints
from penstock.checkpoints.dtypes import LEAST, check_torch

PAGE = Path(__file__).parents[3] / "pyproject.toml"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_older_torch_loads_nothing(tmp_path, monkeypatch) -> None:
    root = loader.Root(str(tmp_path))
    root.create()
    checkpoints = Checkpoints(root, "run")
    checkpoints.save(1, {"lr": 0.5})
    state = {"lr": 0.0}
    with monkeypatch.context() as older:
        older.setattr(torch, "__version__", "2.9.1+cu128")
        with pytest.raises(MissingDependency, match=r"torch 2\.9\.1\+cu128 .* pip install 'torch>=2\.10'"):
            checkpoints.load(state)
    assert state == {"lr": 0.0}
    checkpoints.load(state)
    assert state == {"lr": 0.5}
    checkpoints.close()


@pytest.mark.parametrize("version", ["2.10.0", "2.10.1+cpu", "2.13.0", "3.0.0a0+git1", "10.0"])
def test_newer_one_is_taken(version, monkeypatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    check_torch()


@pytest.mark.parametrize("version", ["1.13.1", "2.4.0", "2.5.1", "2.6.0", "2.9.1", "unknown"])
def test_older_one_is_not(version, monkeypatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(MissingDependency):
        check_torch()


def test_every_extra_wants_a_torch_that_may_load() -> None:
    extras = tomllib.loads(PAGE.read_text())["project"]["optional-dependencies"]
    bounds = [one for some in extras.values() for one in some if re.match(r"torch\b(?!data)", one)]
    assert bounds
    for one in bounds:
        found = re.fullmatch(r"torch>=(\d+)\.(\d+)", one)
        assert found is not None, one
        assert (int(found[1]), int(found[2])) >= LEAST
