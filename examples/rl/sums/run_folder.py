"""The folder of a run: its settings, its newest policy, and the counter of each sampler.

settings.json         what all processes of the run agree on, written once
policy-0.pt           the policy at the beginning
<run>/policy.pt       the newest policy of a run, replaced after each step
<run>/rank-<n>.pid    number of a rank's process
<run>/result.json     accuracy and weights at the run's end
<sampler>.json        number of the sampler's next transaction
root/                 rollouts, checkpoints, decisions and records
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .model import Policy

DATASET = "sums-rl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What samplers and trainers agree on."""

    run: str
    """Name of the run that the samplers feed."""
    ranks: int
    """Processes of the trainer."""
    steps: int
    """Optimizer steps of the run."""
    groups: int
    """Groups of a step: one group is the answers to one prompt."""
    answers: int
    """Answers of a group."""
    max_lag: int
    """Policy versions that an answer may be behind the trainer's."""
    length: int
    """Tokens of a packed sequence."""
    checkpoint_every: int
    """Steps from one checkpoint to the next."""
    learning_rate: float
    seed: int


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Files of a run that are not in its root."""

    path: Path

    @property
    def root(self) -> str:
        return str(self.path / "root")

    def settings(self) -> Settings:
        """Return the settings that `begin` wrote."""
        return Settings(**json.loads((self.path / "settings.json").read_text()))

    def begin(self, settings: Settings, policy: Policy) -> None:
        """Write the settings and the first policy."""
        self.path.mkdir(parents=True, exist_ok=True)
        _replace_policy(self.path / "policy-0.pt", 0, policy)
        _replace_json(self.path / "settings.json", asdict(settings))

    def first_policy(self) -> Policy:
        return _read_policy(self.path / "policy-0.pt")[1]

    def newest_policy(self, run: str) -> tuple[int, Policy]:
        """Return the version and the policy that a run has now; version 0 before its first step."""
        path = self.path / run / "policy.pt"
        if not path.exists():
            path = self.path / "policy-0.pt"
        return _read_policy(path)

    def newest_version(self, run: str) -> int:
        """Return the version of the policy that a run has now."""
        return self.newest_policy(run)[0]

    def replace_policy(self, run: str, version: int, policy: Policy) -> None:
        """Give the samplers a policy. A reader sees this one or the one before, never a part."""
        (self.path / run).mkdir(exist_ok=True)
        _replace_policy(self.path / run / "policy.pt", version, policy)

    def next_number(self, sampler: str) -> int:
        """Return the number of a sampler's next transaction."""
        path = self.path / f"{sampler}.json"
        if not path.exists():
            return 0
        number: int = json.loads(path.read_text())["next"]
        return number

    def replace_next_number(self, sampler: str, number: int) -> None:
        _replace_json(self.path / f"{sampler}.json", {"next": number})

    def result(self, run: str) -> dict[str, Any] | None:
        """Return what a run wrote at its end; None before."""
        path = self.path / run / "result.json"
        if not path.exists():
            return None
        result: dict[str, Any] = json.loads(path.read_text())
        return result

    def write_result(self, run: str, result: dict[str, Any]) -> None:
        _replace_json(self.path / run / "result.json", result)


def weights_sha256(policy: Policy) -> str:
    """Return a hash of all weights: equal for policies that are equal bit for bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(policy.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _read_policy(path: Path) -> tuple[int, Policy]:
    saved = torch.load(path, weights_only=True)
    policy = Policy()
    policy.load_state_dict(saved["policy"])
    return saved["version"], policy


def _replace_policy(path: Path, version: int, policy: Policy) -> None:
    unfinished = _unfinished(path)
    torch.save({"version": version, "policy": policy.state_dict()}, unfinished)
    unfinished.replace(path)


def _replace_json(path: Path, value: object) -> None:
    unfinished = _unfinished(path)
    unfinished.write_text(json.dumps(value, indent=1))
    unfinished.replace(path)


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}")
