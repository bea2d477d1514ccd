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
    ranks_per_node: int = 1
    """Processes per node: one per GPU."""
    grace_s: int = 30
    """Seconds that the run needs to stop: two steps and a checkpoint."""
    checkpoints: str = ""
    """Root of the checkpoints; "": the record's."""
    record: str = ""
    """Root that holds `trainings/<run>/` and the trail."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the ranks. No secrets: the file is stored in the record."""

    def to_json(self) -> dict[str, Any]:
        """Return the facts as the record stores them."""
        return {**asdict(self), "command": list(self.command), "env": dict(self.env)}


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
    return spec


_LEAST = {"ranks_per_node": 1, "grace_s": 1}


def _checked(where: str, name: str, value: Any) -> Any:
    """Return a value as its field has it. Raises: InvalidSpec."""

    def wrong(accepted: str) -> InvalidSpec:
        return InvalidSpec(f"{where}: {name} = {value!r}; accepted: {accepted}")

    if name in _LEAST:
        if type(value) is not int or value < _LEAST[name]:
            raise wrong(f"a whole number, {_LEAST[name]} or more")
        return value
    if name == "command":
        if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
            raise wrong("a list of texts")
        return tuple(value)
    if name == "env":
        if not isinstance(value, dict) or not all(
            _VARIABLE.fullmatch(key) and isinstance(text, str) for key, text in value.items()
        ):
            raise wrong("a table of NAME = text")
        return value
    if not isinstance(value, str):
        raise wrong("a text")
    return value
