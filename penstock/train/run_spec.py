"""The TOML file of a training run: its command, its size, and where it saves."""

import hashlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from loader.dataset.log.entries import canonical
from loader.errors import InvalidName, InvalidSpec
from loader.keywords import is_whole_number
from loader.redaction import redact
from loader.run.trail.trail import check_run_name
from loader.storage.spec import has_url_secret

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
    srun: tuple[str, ...] = ()
    """Slurm: further options of srun, such as ("--cpu-bind=cores",)."""
    snapshot: str = ""
    """SHA-256 of the copy of the code that ranks start from, by `submit --snapshot`; "": the folder itself."""

    @property
    def node_range(self) -> tuple[int, int]:
        """Least and most nodes."""
        least, _, most = self.nodes.partition("-")
        return int(least), int(most or least)

    @property
    def digest(self) -> str:
        """16 hex digits that differ between files, for the jobs of a launcher."""
        return hashlib.sha256(canonical(self.to_json())).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the facts as the record stores them."""
        body = {**asdict(self), "env": dict(self.env)}
        body |= {name: list(getattr(self, name)) for name in _LISTS}
        # Earlier releases refuse keys that they do not know.
        return {name: value for name, value in body.items() if value or name not in _LATER}


_LISTS = ("command", "trackers", "srun")
_LATER = ("srun", "snapshot")
"""Keys of this release, which a record lacks unless the file has them."""


def read_spec(path: str | Path, settings: Iterable[str] = ()) -> RunSpec:
    """Return the run of a file. settings: "KEY=VALUE" texts that replace keys of it.

    Raises: InvalidSpec, which names file, key and what is accepted.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidSpec(
            f"{path}: {error}", what="TOML", where=str(path), given=type(error).__name__
        ) from error
    for setting in settings:
        _set(values, setting)
    spec = parse_spec(values, str(path))
    check_without_secrets(spec, str(path))
    return spec


def _set(values: dict[str, Any], setting: str) -> None:
    """Replace a key of a file's table, or a variable of its `env`. Raises: InvalidSpec."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise InvalidSpec(
            f"--set {redact(setting)!r}; accepted: KEY=VALUE, such as walltime_s=7200 or env.NCCL_DEBUG=INFO"
        )
    table, _, name = key.rpartition(".")
    if table == "env":
        values["env"] = {**values.get("env", {}), name: text}
        return
    try:
        values[key] = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        values[key] = text  # a text without quotes, which the shell has removed


def check_without_secrets(spec: RunSpec, where: str) -> None:
    """Check that no URL of a run carries a secret: its record stores the file. Raises: InvalidSpec."""
    for name, text in _texts(spec):
        if has_url_secret(text):
            raise InvalidSpec(
                f"{where}: {name} has a URL with a password, token or signature, and the record stores the file; put "
                "it into the environment of the ranks (on a cluster: `environment` or `secret` of its file)",
                what=name,
                where=where,
                given="a URL with a secret",
            )


def _texts(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each field, list item and variable."""
    for name, value in spec.to_json().items():
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, list):
            yield from ((f"{name}[{number}]", text) for number, text in enumerate(value))
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", text) for key, text in value.items())


def parse_spec(values: Mapping[str, Any], where: str) -> RunSpec:
    """Return the run that a table describes. Raises: InvalidSpec."""
    known = {one.name: one for one in fields(RunSpec)}
    for name in values:
        if name not in known:
            raise InvalidSpec(
                f"{where}: {name} is not a key; accepted: {', '.join(known)}",
                what=name,
                where=where,
                accepted=list(known),
            )
    for name in ("run", "command", "record"):
        if not values.get(name):
            raise InvalidSpec(f"{where}: {name} is missing", what=name, where=where, given="missing")
    checked = {name: _check_value(where, name, value) for name, value in values.items()}
    spec = RunSpec(**checked)
    try:
        check_run_name(spec.run)
    except InvalidName as error:
        raise InvalidSpec(
            f"{where}: {error}", what=error.what, where=where, given=error.given, accepted=error.accepted
        ) from error
    return spec


_LEAST = {"ranks_per_node": 1, "gpus_per_node": 0, "walltime_s": 0, "grace_s": 1}
_SNAPSHOT = re.compile(r"(?:[0-9a-f]{64})?")
_NODES = re.compile(r"([1-9][0-9]{0,5})(?:-([1-9][0-9]{0,5}))?")


def _check_value(where: str, name: str, value: Any) -> Any:
    """Return a value as its field has it. Raises: InvalidSpec."""

    def wrong(accepted: str) -> InvalidSpec:
        shown = redact(repr(value))
        message = f"{where}: {name} = {shown}; accepted: {accepted}"
        return InvalidSpec(message, what=name, where=where, given=shown, accepted=accepted)

    if name in _LEAST:
        if not is_whole_number(value, _LEAST[name]):
            raise wrong(f"a whole number, {_LEAST[name]} or more")
        return value
    if name == "nodes":
        match = None
        if type(value) in (int, str):
            match = _NODES.fullmatch(str(value))
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise wrong('a whole number, 1 or more, or a range such as "6-8"')
        return str(value)
    if name in _LISTS:
        if not isinstance(value, list | tuple) or not all(map(_is_text, value)):
            raise wrong("a list of texts")
        if name == "srun":
            _check_srun(where, value)
        return tuple(value)
    if name == "env":
        if not isinstance(value, dict) or not all(
            _VARIABLE.fullmatch(key) and _is_text(text) for key, text in value.items()
        ):
            raise wrong("a table of NAME = text")
        return value
    if not _is_text(value):
        raise wrong("a text")
    if name == "snapshot" and not _SNAPSHOT.fullmatch(value):
        raise wrong("64 hex digits, as submit --snapshot stores them")
    return value


_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=([^\x00-\x1f\x7f]*))?")
_SCRIPTS_OWN = frozenset(
    {
        *("cpus-per-task", "distribution", "error", "export", "het-group", "input", "job-name", "jobid"),
        *("kill-on-bad-exit", "label", "mpi", "multi-prog", "no-kill", "nodefile", "nodelist", "nodes"),
        *("ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "output", "relative", "signal"),
        *("test-only", "wait"),
    }
)
"""Options of srun by which penstock starts ranks, finds their output and stops them."""


def _check_srun(where: str, options: Iterable[str]) -> None:
    """Check options of srun. Raises: InvalidSpec."""
    for option in options:
        match = _OPTION.fullmatch(option)
        if match is None:
            raise InvalidSpec(
                f'{where}: srun has {redact(option)!r}; accepted: whole options such as "--cpu-bind=cores" or '
                '"--container-image=/images/train.sqsh"',
                what="srun",
                where=where,
                given=redact(option),
                accepted="whole options",
            )
        # srun takes a unique beginning of a name for the name.
        if any(own.startswith(match[1]) for own in _SCRIPTS_OWN):
            raise InvalidSpec(
                f"{where}: srun has --{match[1]}, which penstock sets itself; see nodes, ranks_per_node, grace_s, and "
                "`slot` of the cluster's file",
                what="srun",
                where=where,
                given=f"--{match[1]}",
                accepted="options that penstock does not set",
            )


def _is_text(value: Any) -> bool:
    """Return whether a value is a text that commands and variables can hold."""
    return isinstance(value, str) and "\0" not in value
