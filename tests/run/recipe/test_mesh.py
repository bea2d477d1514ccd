"""Data-parallel ranks from device meshes: what a group of tensor-parallel processes gets, and how ranks count."""

import json
from pathlib import Path

import pytest

import loader
from loader.errors import InvalidRuntime
from tests.refusals import refusal
from tests.servers.processes import python

GROUPS = """
import json, sys
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
import loader

distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
world = loader.World.of_mesh(mesh, "dp")
plan = loader.plan({"photos": loader.Root(sys.argv[1]).open("photos@1")}, seed=8, global_batch=7)
told = {"world": [world.rank, world.world_size], "ids": [], "digests": [], "same": True}
with loader.Loader(plan, world, steps=4) as batches:
    for batch in batches:
        told["ids"].append(batch.ids)
        told["digests"].append(batch.digest)
        every = [torch.empty_like(batch["cls"]) for _ in range(2)]
        distributed.all_gather(every, batch["cls"], group=mesh.get_group("tp"))
        told["same"] &= bool((every[0] == every[1]).all())
    told["state"] = batches.state_dict()
with open(f"{sys.argv[2]}/{distributed.get_rank()}.json", "w") as out:
    json.dump(told, out)
distributed.destroy_process_group()
"""


@pytest.mark.server
@pytest.mark.filterwarnings("ignore")
def test_tensor_parallel_group_gets_the_same_slots_and_the_groups_make_the_batch(tmp_path, samples):
    root = loader.Root(str(tmp_path / "root"))
    samples.write(root, "photos", range(30), part_samples=11, fields=("cls",))
    script = tmp_path / "groups.py"
    script.write_text(GROUPS)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(script)]
    done = python(
        *launcher,
        root.url,
        tmp_path,
        env={"PYTHONPATH": str(Path(loader.__file__).parents[1]), "PATH": "", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads((tmp_path / f"{process}.json").read_text()) for process in range(4)]
    assert [one["world"] for one in told] == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert all(one["same"] for one in told)
    assert told[0]["ids"] == told[1]["ids"] != told[2]["ids"] == told[3]["ids"]
    plan = loader.plan({"photos": root.open("photos@1")}, seed=8, global_batch=7)
    with loader.Loader(plan, 0, 1, steps=4, framework="numpy") as batches:
        for step, batch in enumerate(batches):
            halves = told[0]["ids"][step] + told[2]["ids"][step]
            assert [tuple(one) for one in halves] == batch.ids
            assert (told[1]["digests"][step] + told[3]["digests"][step]) % 2**64 == batch.digest
        assert all(one["state"] == batches.state_dict() for one in told)


@pytest.fixture
def meshes():
    """meshes(shape, names, rank) -> torch's own mesh as one process of many sees it, without the others."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def mesh(shape, names, rank):
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        size = int(torch.tensor(shape).prod())
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        return init_device_mesh("cpu", shape, mesh_dim_names=names)

    yield mesh
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("dims", "rank_of"),
    [
        (("dp_replicate", "dp_shard"), lambda replicate, shard, tp: (replicate * 3 + shard, 6)),
        (("dp_shard",), lambda replicate, shard, tp: (shard, 3)),
        (("dp_shard", "dp_replicate"), lambda replicate, shard, tp: (shard * 2 + replicate, 6)),
    ],
)
def test_dimensions_count_row_by_row(meshes, dims, rank_of):
    names = ("dp_replicate", "dp_shard", "tp")
    for process in range(12):
        place = (process // 6, process // 2 % 3, process % 2)
        world = loader.World.of_mesh(meshes((2, 3, 2), names, process), *dims)
        assert (world.rank, world.world_size) == rank_of(*place)


@pytest.mark.filterwarnings("ignore")
def test_meshes_that_do_not_say_it(meshes):
    mesh = meshes((2, 2), ("dp", "tp"), 3)
    assert loader.World.of_mesh(mesh["dp"], "dp") == loader.World(rank=1, world_size=2)
    for dims in ((), ("data",), ("dp", "dp")):
        with refusal(InvalidRuntime, what="dims", given=dims, accepted=("dp", "tp")):
            loader.World.of_mesh(mesh, *dims)
    with refusal(InvalidRuntime, what="dims", given=("dp",), accepted=()) as nameless:
        loader.World.of_mesh(meshes((4,), None, 0), "dp")
    assert "init_device_mesh(mesh_dim_names=)" in str(nameless.value)


@pytest.mark.filterwarnings("ignore")
def test_process_outside_of_the_mesh_has_no_rank(meshes):
    from torch.distributed.device_mesh import DeviceMesh

    meshes((4,), ("all",), 3)
    part = DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",))
    with refusal(InvalidRuntime, what="mesh", given="another process's mesh"):
        loader.World.of_mesh(part, "dp")


def test_world_is_taken_for_rank_and_size(versions):
    world = loader.World(rank=1, world_size=3)
    plan = loader.plan({"a": versions["web"]}, seed=1, global_batch=6)
    assert loader.run.recipe.world.World.of(world, None) is world
    with refusal(InvalidRuntime, what="world_size", given=3, accepted="only the World"):
        loader.torch_dataset(plan, world, 3)
    assert loader.torch_dataset(plan, world).world == world
