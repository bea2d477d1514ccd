"""Rank and world size from what launchers put into the environment."""

import pytest

from loader.errors import InvalidRuntime
from loader.run.recipe.world import World

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        (TORCHRUN, (3, 8)),
        (SLURM, (2, 4)),
        (OPEN_MPI, (1, 2)),
        ({**SLURM, **TORCHRUN}, (3, 8)),
        ({**OPEN_MPI, **SLURM}, (2, 4)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6"}, (5, 6)),
        ({"WORLD_SIZE": "8", **SLURM}, (2, 4)),
        ({"WORLD_SIZE": "1"}, (0, 1)),
        ({}, (0, 1)),
        ({"SLURM_NTASKS": "4"}, (0, 1)),  # a shell inside an allocation
        ({"SLURM_PROCID": "0"}, (0, 1)),  # a batch step
        ({"SLURM_PROCID": "0", **OPEN_MPI}, (1, 2)),
    ],
)
def test_launchers(environ, wanted):
    world = World.from_env(environ)
    assert (world.rank, world.world_size) == wanted


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({"RANK": "one", "WORLD_SIZE": "8"}, "RANK='one', WORLD_SIZE='8' in the environment; whole numbers"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4(x2)"}, "SLURM_NTASKS='4"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, "rank = 8 with world_size = 8; ranks are numbered 0 to 7"),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, "rank = -1"),
        ({"RANK": "3"}, "RANK='3' is in the environment and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "8"}, "WORLD_SIZE='8' is in the environment and RANK is not"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE is not"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "world_size = 0: a whole number of at least 1"),
    ],
)
def test_malformed(environ, wanted):
    with pytest.raises(InvalidRuntime) as caught:
        World.from_env(environ)
    assert wanted in str(caught.value)


def test_arguments_come_before_the_environment(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert World.of(None, None) == World(rank=3, world_size=8)
    assert World.of(0, 2) == World(rank=0, world_size=2)
