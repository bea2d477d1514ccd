"""A sharded training saved by real ranks, loaded by other numbers of them, and killed in mid-save."""

import shutil
import signal

import pytest

from loader.storage import open_store
from penstock.checkpoints import marker
from penstock.checkpoints.listing import list_steps

SMALL = {"part_bytes": 30_000, "seed": 1}
OTHER = {"seed": 2}


@pytest.fixture(scope="module")
def checkpoint_place(ranks, tmp_path_factory):
    """(place, digests) of a checkpoint of step 10 by 2 ranks, which no test changes."""
    place = str(tmp_path_factory.mktemp("saved") / "root")
    return place, ranks(2, "save", url=place, step=10, **SMALL)


@pytest.mark.parametrize("world", [1, 3])
def test_saved_at_two_ranks_it_is_the_same_bits_at_any_number(ranks, checkpoint_place, world):
    place, expected = checkpoint_place
    assert len([name for name in expected if name.startswith("/optimizer/state")]) > 30
    for one in ranks(world, "load", whole=False, url=place, **OTHER):
        assert one["said"]["step"] == 10
        assert one["said"]["digests"] == expected


@pytest.mark.gpu
def test_saved_under_nccl_beside_a_training_it_is_the_same_bits_on_a_cpu(ranks, tmp_path):
    place = str(tmp_path / "root")
    expected = ranks(1, "save", url=place, step=10, after=3, device="cuda", **SMALL)
    assert len([name for name in expected if name.startswith("/optimizer/state")]) > 30
    for device in ("cpu", "cuda"):
        found = ranks(1, "load", url=place, device=device, **OTHER)
        assert (found["step"], found["digests"]) == (10, expected)


def test_each_rank_writes_its_own_parts_and_none_is_larger(checkpoint_place):
    found = marker.read(open_store(checkpoint_place[0]), "run", 10)
    assert found.world_size == 2
    assert len({part.name.split("-")[0] for part in found.parts}) == 2  # one random name per rank
    assert max(part.nbytes for part in found.parts) < 30_000 + 4_000  # (with its header)
    assert sum(part.nbytes for part in found.parts) > 3 * 4 * 1001 * 32


@pytest.mark.parametrize(
    ("rank", "at"),
    [
        (1, "-00001.safetensors"),
        pytest.param(0, "-00000.safetensors", marks=pytest.mark.server),
        pytest.param(0, "-index.json", marks=pytest.mark.server),
        pytest.param(0, "steps/000000000020.json", marks=pytest.mark.server),
    ],
)
def test_killed_in_mid_save_the_last_good_one_stays_and_the_step_can_be_saved_again(
    ranks, checkpoint_place, tmp_path, rank, at
):
    place = str(tmp_path / "root")
    shutil.copytree(checkpoint_place[0], place)
    store, more = open_store(place), {"url": place, "step": 20, "train": 3, **SMALL}
    killed = ranks(2, "save", whole=False, die_rank=rank, die_at=at, **more)
    assert killed[rank]["code"] == -signal.SIGKILL
    assert killed[1 - rank]["code"] == 1
    problems = [(one.step, one.problem.partition(":")[0]) for one in list_steps(store, "run")]
    assert problems == [(10, ""), (20, "no marker")]
    assert ranks(1, "load", url=place, **OTHER)["digests"] == checkpoint_place[1]

    again = ranks(2, "save", **more)
    assert again != checkpoint_place[1]
    found = ranks(1, "load", url=place, **OTHER)
    assert (found["step"], found["digests"]) == (20, again)
    made = marker.read(store, "run", 20)
    here = {one.key for one in store.list("checkpoints/run/parts/000000000020/")}
    assert here == {made.key(one) for one in made.objects}  # nothing of the killed one is left
    assert [one.problem for one in list_steps(store, "run")] == ["", ""]


def test_save_beside_a_training_that_goes_on_is_of_its_step(ranks, tmp_path):
    place = str(tmp_path / "root")
    expected = ranks(2, "save", url=place, step=10, after=3, **SMALL)
    assert ranks(1, "load", url=place, **OTHER)["digests"] == expected


@pytest.mark.parametrize("more", [{}, {"after": 1}])
def test_ranks_that_save_different_steps_commit_nothing(ranks, checkpoint_place, tmp_path, more):
    place = str(tmp_path / "root")
    shutil.copytree(checkpoint_place[0], place)
    for one in ranks(2, "save", whole=False, url=place, step=20, apart=1, keep_last=1, **SMALL, **more):
        assert (one["code"], one["said"].split(":")[0]) == (1, "InvalidRuntime")
        assert "rank 1 saves step 21 of run 'run', the coordinator step 20 of run 'run'" in one["said"]
    assert marker.steps(open_store(place), "run") == [10]
    assert ranks(1, "load", url=place, **OTHER)["digests"] == checkpoint_place[1]


def test_every_rank_is_told_what_failed_on_one(ranks, checkpoint_place, tmp_path):
    tmp_path.joinpath("root").mkdir()
    tmp_path.joinpath("root", "mine.txt").write_text("somebody else's folder")
    for one in ranks(2, "save", whole=False, url=str(tmp_path / "root"), step=10, **SMALL):
        assert (one["code"], one["said"].split(":")[0]) == (1, "NotARoot")
    for one in ranks(2, "load", whole=False, url=checkpoint_place[0], step=11, **OTHER):
        assert (one["code"], one["said"].split(":")[0]) == (1, "CheckpointNotFound")
