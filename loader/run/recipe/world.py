"""This process's rank and world size, from arguments, the launcher's environment, or a device mesh."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from ...errors import InvalidRuntime
from ...keywords import whole_number
from ...order.plan import Plan
from ...order.sources.items_view import ItemsView

LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""Variables of torchrun, Slurm, Open MPI, and MPICH and Intel MPI, in this order of preference."""


class Mesh(Protocol):
    """The part of a `DeviceMesh` that is used here."""

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """One name per dimension."""

    def size(self, mesh_dim: int | None = None) -> int:
        """Return the number of processes along a dimension."""

    def get_coordinate(self) -> Sequence[int] | None:
        """Return this process's coordinate along each dimension; None outside the mesh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Data-parallel rank and world size. Raises: InvalidRuntime."""

    rank: int
    """Number of this process, 0 <= rank < world_size."""
    world_size: int
    """Number of data-parallel ranks, 1 or more."""

    def __post_init__(self) -> None:
        world_size = whole_number("world_size", self.world_size, 1)
        object.__setattr__(self, "world_size", world_size)
        rank = whole_number("rank", self.rank, 0)
        object.__setattr__(self, "rank", rank)
        if rank >= world_size:
            raise InvalidRuntime(
                f"rank = {self.rank} with world_size = {self.world_size}; ranks are numbered 0 to "
                f"{self.world_size - 1}",
                what="rank",
                given=self.rank,
                accepted=f"0 to {self.world_size - 1}",
            )

    @staticmethod
    def from_env(environ: Mapping[str, str] | None = None) -> "World":
        """Return the world from the launcher's variables (`LAUNCHERS`), or a single process. Raises: InvalidRuntime."""
        if environ is None:
            environ = os.environ
        for rank, world_size in LAUNCHERS:
            if rank not in environ:
                continue
            if world_size not in environ:
                if environ[rank] == "0":
                    continue  # a single process in Slurm's batch step
                # (as a single process, every rank would read all of every batch)
                raise InvalidRuntime(
                    f"{rank}={environ[rank]!r} is in the environment and {world_size} is not; set both, or pass "
                    "rank= and world_size="
                )
            try:
                numbers = int(environ[rank]), int(environ[world_size])
            except ValueError:
                raise InvalidRuntime(
                    f"{rank}={environ[rank]!r}, {world_size}={environ[world_size]!r} in the environment; whole "
                    "numbers are needed. Pass rank= and world_size= to override"
                ) from None
            return World(rank=numbers[0], world_size=numbers[1])
        # (a shell in a Slurm allocation has only SLURM_NTASKS)
        if environ.get("WORLD_SIZE", "1") != "1":
            raise InvalidRuntime(
                f"WORLD_SIZE={environ['WORLD_SIZE']!r} is in the environment and RANK is not; set both, or pass rank= "
                "and world_size="
            )
        return World(rank=0, world_size=1)

    @staticmethod
    def of_mesh(mesh: Mesh, *dims: str) -> "World":
        """Return the rank along a mesh's data-parallel dimensions, such as "dp", or "dp_replicate", "dp_shard".

        Processes that differ only along other dimensions (tensor, context, pipeline parallel) are one rank: they get
        the same slots. Several dimensions are numbered row by row, in the order given.

        Raises: InvalidRuntime if the mesh lacks a dimension, or the process is outside it.
        """
        names = mesh.mesh_dim_names or ()
        place = mesh.get_coordinate()
        unknown = [name for name in dims if name not in names]
        if not dims or unknown or len(set(dims)) < len(dims):
            raise InvalidRuntime(
                f"of_mesh(mesh, {', '.join(map(repr, dims))}): the data-parallel dimensions of the mesh are needed, "
                f"each once; it has {', '.join(map(repr, names)) or 'no names (init_device_mesh(mesh_dim_names=))'}",
                what="dims",
                given=dims,
                accepted=tuple(names),
            )
        if place is None:
            raise InvalidRuntime(
                "of_mesh: this process is not in the mesh, so it has no data-parallel rank",
                what="mesh",
                given="another process's mesh",
                accepted="a mesh with this process",
            )
        rank = 0
        world_size = 1
        for at in map(names.index, dims):
            rank = rank * mesh.size(at) + place[at]
            world_size = world_size * mesh.size(at)
        return World(rank=rank, world_size=world_size)

    @staticmethod
    def of(rank: "int | World | None", world_size: int | None) -> "World":
        """Return `rank` if it is a World, else the World of both numbers, or the environment's without them.

        Raises: InvalidRuntime if only one of the two is given.
        """
        if isinstance(rank, World) and world_size is None:
            return rank
        if isinstance(rank, World):
            raise InvalidRuntime(
                f"rank = {rank}, world_size = {world_size}: the World has its size, pass only the World",
                what="world_size",
                given=world_size,
                accepted="only the World",
            )
        if rank is None and world_size is None:
            return World.from_env()
        if rank is None or world_size is None:
            raise InvalidRuntime(
                f"rank = {rank}, world_size = {world_size}; pass both, or neither to read the environment",
                what="rank",
                given=[rank, world_size],
                accepted="both, or neither",
            )
        return World(rank=rank, world_size=world_size)


def micro_count(global_batch: int, world_size: int, micro_batch: int) -> int:
    """Return the number of micro batches per rank, each at most micro_batch slots. The largest part decides."""
    largest = -(-global_batch // world_size)
    return -(-largest // micro_batch)


def check_micro_batch(plan: Plan, world: World, micro_batch: object) -> int:
    """Return micro_batch as an int.

    Raises: InvalidRuntime for another value, with `collate=` of a dataset, or if a rank would get an empty micro batch
    (only at 1 and unequal parts).
    """
    number = whole_number("micro_batch", micro_batch, 1)
    for name, source in plan.sources.items():
        view = source.view
        if isinstance(view, ItemsView) and view.source is not None and view.source.collate is not None:
            raise InvalidRuntime(
                f"micro_batch = {number} with collate= of source {name!r}: what collate returns cannot be cut; leave "
                "collate= out, and join the fields of each micro batch, or cut batch.collated in the training's loop",
                what="micro_batch",
                where=f"source {name!r}",
                given=number,
                accepted="a source without collate=",
            )
    for size in {size for stream in plan.streams.values() for size in stream.batch_sizes}:
        if size // world.world_size < micro_count(size, world.world_size, number):
            raise InvalidRuntime(
                f"micro_batch = {number} with a global batch of {size} on {world.world_size} ranks: some would have a "
                f"micro batch less; use {number + 1}, or a batch that the ranks divide",
                what="micro_batch",
                where=f"a global batch of {size} on {world.world_size} ranks",
                given=number,
                accepted=number + 1,
            )
    return number


def count_micros(plan: Plan, end: int, world_size: int, micro_batch: int) -> int:
    """Return a rank's micro batches in all steps before `end`."""
    steps: Counter[int] = Counter()
    ends: Mapping[Any, int] = {None: end}
    if plan.buckets is not None:
        ends = dict(plan.buckets.turns.used_before(end).items())
    for label, own in ends.items():
        stream = plan.streams[label]
        starts = [min(segment.start_step, own) for segment in stream.segments]
        for size, (first, last) in zip(stream.batch_sizes, pairwise([*starts, own]), strict=True):
            steps[size] += last - first
    return sum(count * micro_count(size, world_size, micro_batch) for size, count in steps.items())
