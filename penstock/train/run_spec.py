"""The TOML file of a training run: its command, its size, and where it saves."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from loader.errors import InvalidName, InvalidSpec
from loader.run.trail.trail import check_run_name

_NODES = re.compile(r"([1-9][0-9]*)(?:-([1-9][0-9]*))?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TRACKERS = ("mlflow", "tensorboard", "wandb")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """A run as its file describes it."""

    run: str
    """Name, found again when the file is submitted twice."""
    command: tuple[str, ...]
    """Words of the command of one rank, such as ("python", "train.py")."""
    nodes: str = "1"
    """Number of nodes, or the fewest and the most: "6-8"."""
    ranks_per_node: int = 1
    """Processes per node: one per GPU."""
    gpus_per_node: int = 0
    """GPUs per node; 0: none are asked for."""
    cpus_per_rank: int = 1
    """Processors of a rank."""
    memory: str = ""
    """Memory of a node, such as "256GiB"; "": as the queue gives."""
    priority: str = ""
    """Name in the cluster's table `priorities`; "": the cluster's default."""
    walltime_s: int = 0
    """Seconds after which the cluster stops an attempt; 0: the queue's limit."""
    grace_s: int = 30
    """Seconds that the run needs to stop: two steps and a checkpoint."""
    checkpoints: str = ""
    """Root of the checkpoints; "": the record's."""
    record: str = ""
    """Root that holds `trainings/<run>/` and the trail."""
    trackers: tuple[str, ...] = ()
    """Trackers that get the run's metrics: names in `TRACKERS`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the ranks. No secrets: the file is stored in the record."""

    @property
    def least_nodes(self) -> int:
        """Fewest nodes of an attempt."""
        return int(self.nodes.partition("-")[0])

    @property
    def most_nodes(self) -> int:
        """Most nodes of an attempt."""
        return int(self.nodes.rpartition("-")[2])

    def to_json(self) -> dict[str, Any]:
        """Return the facts as the record stores them."""
        return {
            **asdict(self),
            "command": list(self.command),
            "trackers": list(self.trackers),
            "env": dict(self.env),
        }


def read_spec(path: str | Path) -> RunSpec:
    """Return the run of a file. Raises: InvalidSpec, which names file, key and what is accepted."""
    try:
        values = tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InvalidSpec(f"{path}: {error}") from error
    return spec_of(values, str(path))


def spec_of(values: Mapping[str, Any], where: str) -> RunSpec:
    """Return the run that a table describes. Raises: InvalidSpec."""
    known = {one.name: one for one in fields(RunSpec)}
    for name in values:
        if name not in known:
            raise InvalidSpec(f"{where}: {name} is no key; accepted: {', '.join(known)}")
    for name in ("run", "command", "record"):
        if not values.get(name):
            raise InvalidSpec(f"{where}: {name} is missing")
    checked = {name: _checked(where, name, value) for name, value in values.items()}
    spec = RunSpec(**checked)
    try:
        check_run_name(spec.run)
    except InvalidName as error:
        raise InvalidSpec(f"{where}: {error}") from error
    nodes = _NODES.fullmatch(spec.nodes)
    if nodes is None or spec.least_nodes > spec.most_nodes:
        raise InvalidSpec(
            f'{where}: nodes = {spec.nodes!r}; accepted: a number, or the fewest and the most: "6-8"'
        )
    if unknown := [name for name in spec.trackers if name not in TRACKERS]:
        raise InvalidSpec(f"{where}: trackers = {unknown}; accepted: {', '.join(TRACKERS)}")
    return spec


_LEAST = {"ranks_per_node": 1, "cpus_per_rank": 1, "grace_s": 1, "gpus_per_node": 0, "walltime_s": 0}


def _checked(where: str, name: str, value: Any) -> Any:
    """Return a value as its field has it. Raises: InvalidSpec."""

    def wrong(accepted: str) -> InvalidSpec:
        return InvalidSpec(f"{where}: {name} = {value!r}; accepted: {accepted}")

    if name in _LEAST:
        if type(value) is not int or value < _LEAST[name]:
            raise wrong(f"a whole number, {_LEAST[name]} or more")
        return value
    if name in ("command", "trackers"):
        if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
            raise wrong("a list of texts")
        return tuple(value)
    if name == "env":
        if not isinstance(value, dict) or not all(
            _VARIABLE.fullmatch(key) and isinstance(text, str) for key, text in value.items()
        ):
            raise wrong("a table of NAME = text")
        return value
    if name == "nodes" and type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise wrong("a text")
    return value
