"""Read a cluster's TOML file: its engine, each runner's share, and the code to run. Examples: docs/clusters.md."""

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from loader.cores import n_cores
from loader.errors import InvalidCluster

from ..units import parse_size
from . import runner_process
from .engines.engine import Engine
from .engines.kubernetes import KubernetesCluster, KubernetesEngine, Placing
from .engines.local_engine import InlineEngine, LocalEngine
from .engines.ray_engine import RayEngine
from .engines.slurm import SlurmCluster, SlurmEngine
from .job import JobFolder
from .job_json import from_mapping
from .pool.import_path import code_folders
from .work import StoredPlace

OUR_PACKAGES = ("assets", "penstock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Share of the cluster that each runner gets."""

    cpus: int = 0
    """Processors; 0: all for the local engine, 1 for other engines."""
    memory: str = ""
    """Memory, such as "32GiB"; "": the engine's default."""
    scratch: str = ""
    """Space needed on the node's own disk; "": unchecked."""
    gpus: int = 0
    """Slurm, Ray, Kubernetes: GPUs, each with a worker of its own."""
    gpu_type: str = ""
    """Slurm, Ray: kind of GPU, such as "a100"; "": any."""
    number: int = 1
    """Concurrent runners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """A command that judges a node by Nagios' exit codes: 0 ok, 1 warning, 2 failure, 3 unknown."""

    command: tuple[str, ...]
    """Its words."""
    limit_s: int = 60
    """Seconds until it counts as unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Settings of training runs on the cluster."""

    options: tuple[str, ...] = ()
    """Slurm: further options of sbatch, such as "--requeue=expedite"."""
    checks: Mapping[str, NodeCheck] = field(default_factory=dict)
    """Name -> check of a node."""
    on_node: tuple[str, ...] = ()
    """Prefix that runs a command on a node, such as ("ssh", "{node}", "{command}")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster as its file describes it."""

    engine: str = "local"
    """Name in `ENGINES`."""
    venv: str = ""
    """Virtual environment on the nodes or in the image; "": the default Python."""
    image: str = ""
    """Kubernetes: runner image, by digest."""
    packages: tuple[str, ...] = ()
    """Other packages whose `Work` objects may run."""
    slot: Slot = field(default_factory=Slot)
    """Each runner's share."""
    queue: str = ""
    """Slurm: partition; "": its default. Kubernetes: Kueue's LocalQueue; "": none."""
    account: str = ""
    """Slurm: account to bill; "": its default."""
    environment: str = ""
    """Slurm, Ray: shell file of NAME=value lines on the nodes."""
    logs: str = ""
    """Slurm: shared folder for the runners' output."""
    submit: tuple[str, ...] = ()
    """Slurm: prefix for its commands, such as ["ssh", "login1"]; empty: this machine's."""
    limit_s: int = 0
    """Slurm: time limit per runner, in s; 0: the queue's."""
    array_max: int = 1000
    """Slurm: most elements in an array."""
    address: str = ""
    """Ray: URL of the head's dashboard, such as "http://head:8265"."""
    secret: str = ""
    """Kubernetes: name of a Secret with the runners' variables."""
    kubernetes: Placing = field(default_factory=Placing)
    """Kubernetes: where pods may run."""
    priorities: Mapping[str, str] = field(default_factory=dict)
    """Priority of a training run -> Slurm's QOS, or Kueue's WorkloadPriorityClass."""
    train: TrainSettings = field(default_factory=TrainSettings)
    """Training runs."""

    @property
    def cpus(self) -> int:
        """Processors per runner."""
        return self.slot.cpus or (n_cores() if self.engine in ("inline", "local") else 1)

    @property
    def scratch_bytes(self) -> int:
        """Bytes that each runner needs on the node's own disk; 0: unchecked."""
        if self.slot.scratch:
            return parse_size(self.slot.scratch)
        return 0

    @property
    def memory_bytes(self) -> int:
        """Memory per runner, in bytes; 0: unknown."""
        if self.slot.memory:
            return parse_size(self.slot.memory)
        return 0

    def open(self) -> Engine:
        """Return the engine; close it after use. Raises: InvalidCluster."""
        return ENGINES[self.engine](self)

    def runner(self, folder: JobFolder, attempt: int, sha256: str) -> list[str]:
        """Return a runner's command, without its element number. sha256: SHA-256 of the job's description."""
        place = StoredPlace.of(folder.store)
        settings = {
            "root": place.url,
            "options": json.dumps(place.options),
            "job": folder.id,
            "sha256": sha256,
            "attempt": str(attempt),
            "cpus": str(self.cpus),
            "memory": str(self.memory_bytes),
            **({} if self.engine in ("inline", "local") else {"gpus": str(self.slot.gpus)}),
            "packages": ",".join(sorted({*OUR_PACKAGES, *self.packages})),
        }
        # An image has its own code.
        if not self.image and (folders := code_folders()):
            settings["import-path"] = os.pathsep.join(folders)
        python = self.node_python("python" if self.image else sys.executable)
        options = [word for name, value in settings.items() for word in (f"--{name}", value)]
        return [python, "-m", runner_process.__name__, *options]

    def node_python(self, default: str) -> str:
        """Return the Python of the nodes; `default` without a virtual environment."""
        if self.venv:
            return f"{self.venv.rstrip('/')}/bin/python"
        return default


def _slurm(cluster: Cluster) -> Engine:
    return SlurmEngine(
        SlurmCluster(
            slots=cluster.slot.number,
            cpus=cluster.cpus,
            memory_bytes=cluster.memory_bytes,
            gpus=cluster.slot.gpus,
            gpu_type=cluster.slot.gpu_type,
            scratch_bytes=cluster.scratch_bytes,
            limit_s=cluster.limit_s,
            queue=cluster.queue,
            account=cluster.account,
            environment=cluster.environment,
            logs=cluster.logs,
            submit=cluster.submit,
            array_max=cluster.array_max,
        )
    )


def _ray(cluster: Cluster) -> Engine:
    return RayEngine(
        cluster.address,
        slots=cluster.slot.number,
        cpus=cluster.cpus,
        memory_bytes=cluster.memory_bytes,
        gpus=cluster.slot.gpus,
        gpu_type=cluster.slot.gpu_type,
        environment=cluster.environment,
    )


def _kubernetes(cluster: Cluster) -> Engine:
    return KubernetesEngine(
        KubernetesCluster(
            slots=cluster.slot.number,
            image=cluster.image,
            cpus=cluster.cpus,
            memory_bytes=cluster.memory_bytes,
            gpus=cluster.slot.gpus,
            scratch_bytes=cluster.scratch_bytes,
            queue=cluster.queue,
            secret=cluster.secret,
            placing=cluster.kubernetes,
        )
    )


ENGINES: Mapping[str, Callable[[Cluster], Engine]] = {
    "inline": lambda _: InlineEngine(),
    "kubernetes": _kubernetes,
    "local": lambda _: LocalEngine(),
    "ray": _ray,
    "slurm": _slurm,
}
"""Engine name in a cluster's file -> factory."""
_ONLY_OF = {
    "address": ("ray",),
    "environment": ("ray", "slurm"),
    "queue": ("kubernetes", "slurm"),
    "scratch": ("kubernetes", "slurm"),
    "priorities": ("kubernetes", "slurm"),
    "gpus": ("kubernetes", "ray", "slurm"),
    "gpu_type": ("ray", "slurm"),
    **dict.fromkeys(("account", "logs", "submit", "limit_s", "array_max", "options"), ("slurm",)),
    **dict.fromkeys(("image", "secret", "kubernetes"), ("kubernetes",)),
}
"""Key of the file or of its `slot` table -> engines that accept it."""


def read_cluster(path: str | Path) -> Cluster:
    """Read a cluster's file. Raises: InvalidCluster, with file, key and accepted values."""
    try:
        tables = tomllib.loads(Path(path).read_text())
        slot = tables.get("slot", {})
        # msgspec ignores unknown keys, which may be misspelt.
        _check_keys("", tables, Cluster)
        _check_keys("slot.", slot if isinstance(slot, dict) else {}, Slot)
        placing = tables.get("kubernetes", {})
        _check_keys("kubernetes.", placing if isinstance(placing, dict) else {}, Placing)
        train = tables.get("train", {})
        _check_keys("train.", train if isinstance(train, dict) else {}, TrainSettings)
        cluster = from_mapping(tables, Cluster)
        for size in (cluster.slot.memory, cluster.slot.scratch):
            # Here, so that a wrong size is the file's error, not a job's.
            parse_size(size or "0")
    except InvalidCluster as error:
        raise error.with_message(f"{path}: {error}", where=path) from error
    except (OSError, ValueError) as error:  # raised by reading, TOML, msgspec and sizes
        raise InvalidCluster(f"{path}: {error}", what=_faulty_key(error), where=path) from error
    if cluster.engine not in ENGINES:
        raise InvalidCluster(
            f"{path}: engine = {cluster.engine!r}; accepted: {', '.join(sorted(ENGINES))}",
            what="engine",
            where=path,
            given=cluster.engine,
            accepted=sorted(ENGINES),
        )
    for name, engines in _ONLY_OF.items():
        if (name in tables or name in slot or name in train) and cluster.engine not in engines:
            raise InvalidCluster(
                f"{path}: {name} is for {' and '.join(engines)}, and the engine is {cluster.engine!r}; remove it",
                what=name,
                where=path,
                given=cluster.engine,
                accepted=engines,
            )
    if cluster.engine == "ray" and not cluster.address.startswith(("http://", "https://")):
        raise InvalidCluster(
            f"{path}: address = {cluster.address!r}; accepted: the URL of the head's dashboard, such as "
            "'http://head:8265'",
            what="address",
            where=path,
            given=cluster.address,
            accepted="the URL of the head's dashboard",
        )
    _check_slot(cluster, path)
    return cluster


def _check_slot(cluster: Cluster, path: str | Path) -> None:
    """Raise InvalidCluster for impossible sizes of a slot. path: of the cluster's file."""
    if cluster.slot.cpus < 0 or cluster.slot.number < 1:
        raise InvalidCluster(
            f"{path}: slot.cpus is at least 0, slot.number at least 1",
            what="slot.cpus and slot.number",
            where=path,
            given=(cluster.slot.cpus, cluster.slot.number),
        )
    if cluster.slot.gpus < 0 or (cluster.slot.gpu_type and not cluster.slot.gpus):
        raise InvalidCluster(
            f"{path}: slot.gpus is at least 0, and at least 1 beside slot.gpu_type",
            what="slot.gpus",
            where=path,
            given=cluster.slot.gpus,
        )
    if cluster.slot.gpus > cluster.cpus:
        raise InvalidCluster(
            f"{path}: slot.cpus is at least slot.gpus, {cluster.slot.gpus}: each GPU has a worker of its own",
            what="slot.cpus",
            where=path,
            given=cluster.cpus,
            accepted=cluster.slot.gpus,
        )


def _faulty_key(error: Exception) -> str | None:
    # msgspec states the key's path at the end of its message only: Expected `int`, got `str` - at `$.slot.gpus`
    match = re.search(r"at `\$\.(.+)`", str(error))
    if match:
        return match[1]
    return None


def _check_keys(table: str, values: Mapping[str, object], kind: type) -> None:
    """Raise InvalidCluster for a key that `kind`, a dataclass, has no field for. table: path of the keys' table."""
    known = [one.name for one in fields(kind)]
    for name in values:
        if name not in known:
            raise InvalidCluster(
                f"{table}{name} is not a key; accepted: {', '.join(known)}",
                what=f"{table}{name}",
                accepted=known,
            )
