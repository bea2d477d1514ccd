"""Which rank of how many this process is: given, or read from the launcher's environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidRuntime

LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
"""torchrun, Slurm, Open MPI, in this order of preference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Data-parallel rank and world size, 0 <= rank < world_size. Raises: InvalidRuntime."""

    rank: int
    world_size: int

    def __post_init__(self) -> None:
        for name, value in (("rank", self.rank), ("world_size", self.world_size)):
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise InvalidRuntime(
                    f"{name} = {value!r} is a {type(value).__name__}; a whole number is needed"
                )
            object.__setattr__(self, name, int(value))  # numpy's integers are welcome
        if self.world_size < 1:
            raise InvalidRuntime(f"world_size = {self.world_size}; at least 1 is needed")
        if not 0 <= self.rank < self.world_size:
            raise InvalidRuntime(
                f"rank = {self.rank} with world_size = {self.world_size}; ranks are numbered 0 to {self.world_size - 1}"
            )

    @staticmethod
    def from_env(environ: Mapping[str, str] | None = None) -> "World":
        """What the launcher says (torchrun, Slurm, Open MPI), or one process alone. Raises: InvalidRuntime."""
        environ = os.environ if environ is None else environ
        for rank, world_size in LAUNCHERS:
            if rank not in environ:
                continue
            if world_size not in environ:
                if environ[rank] == "0":
                    continue  # Slurm's batch step says so of a process that is alone
                # Not one process alone: every rank would read all of every batch.
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
        return World(rank=0, world_size=1)

    @staticmethod
    def of(rank: int | None, world_size: int | None) -> "World":
        """Both as given, or both from the environment. Raises: InvalidRuntime when only one is given."""
        if rank is None and world_size is None:
            return World.from_env()
        if rank is None or world_size is None:
            raise InvalidRuntime(
                f"rank = {rank}, world_size = {world_size}; pass both, or neither to read the environment"
            )
        return World(rank=rank, world_size=world_size)
