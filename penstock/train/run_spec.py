"""The TOML file of a training run: its command, its size, and where it saves."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from loader.errors import InvalidName, InvalidSpec
from loader.run.trail.trail import check_run_name

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """A run as its file describes it."""

    run: str
    """Name, found again when the file is submitted twice."""
    command: tuple[str, ...]
    """Words of the command of one rank, such as ("python", "train.py")."""
    nodes: str = "1"
    """Number of nodes, "8", or least and most, "6-8"."""
    ranks_per_node: int = 1
    """Processes per node: one per GPU."""
    gpus_per_node: int = 0
    """GPUs to ask of each node."""
    priority: str = ""
    """Name in the cluster's `[priorities]`; "": the scheduler's default."""
    walltime_s: int = 0
    """Longest time of one start, in s; 0: the queue's."""
    grace_s: int = 30
    """Seconds that the run needs to stop: two steps and a checkpoint."""
    checkpoints: str = ""
    """Root of the checkpoints; "": the record's."""
    record: str = ""
    """Root that holds `trainings/<run>/` and the trail."""
    trackers: tuple[str, ...] = ()
    """Experiment trackers that get the run's metrics."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the ranks. No secrets: the file is stored in the record."""

    @property
    def node_range(self) -> tuple[int, int]:
        """Least and most nodes."""
        least, _, most = self.nodes.partition("-")
        return int(least), int(most or least)

    def to_json(self) -> dict[str, Any]:
        """Return the facts as the record stores them."""
        lists = {"command": list(self.command), "trackers": list(self.trackers)}
        return {**asdict(self), **lists, "env": dict(self.env)}


def read_spec(path: str | Path) -> RunSpec:
    """Return the run of a file. Raises: InvalidSpec, which names file, key and what is accepted."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
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
    return spec


_LEAST = {"ranks_per_node": 1, "gpus_per_node": 0, "walltime_s": 0, "grace_s": 1}
_NODES = re.compile(r"([1-9][0-9]{0,5})(?:-([1-9][0-9]{0,5}))?")


def _checked(where: str, name: str, value: Any) -> Any:
    """Return a value as its field has it. Raises: InvalidSpec."""

    def wrong(accepted: str) -> InvalidSpec:
        return InvalidSpec(f"{where}: {name} = {value!r}; accepted: {accepted}")

    if name in _LEAST:
        if type(value) is not int or value < _LEAST[name]:
            raise wrong(f"a whole number, {_LEAST[name]} or more")
        return value
    if name == "nodes":
        match = _NODES.fullmatch(str(value)) if type(value) in (int, str) else None
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise wrong('a whole number, 1 or more, or a range such as "6-8"')
        return str(value)
    if name in ("command", "trackers"):
        if not isinstance(value, list | tuple) or not all(map(_is_text, value)):
            raise wrong("a list of texts")
        return tuple(value)
    if name == "env":
        if not isinstance(value, dict) or not all(
            _VARIABLE.fullmatch(key) and _is_text(text) for key, text in value.items()
        ):
            raise wrong("a table of NAME = text")
        return value
    if not _is_text(value):
        raise wrong("a text")
    return value


def _is_text(value: Any) -> bool:
    """Return whether a value is a text that commands and variables can hold."""
    return isinstance(value, str) and "\0" not in value
