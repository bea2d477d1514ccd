"""Micro batches: the pieces of a rank's part are the part, as many on every rank, and their weights make the mean."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.errors import InvalidRuntime
from loader.run.recipe.world import micro_count
from tests.refusals import refusal

SETTINGS = settings(max_examples=30, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def view(versions):
    return versions["web"].select("cls", "x.npy", "txt")


def whole_and_pieces(plan, world_size, micro_batch, **options):
    """Per rank: its parts, and per step its pieces."""
    out = []
    for rank in range(world_size):
        with loader.Loader(plan, rank, world_size, framework="numpy", **options) as batches:
            parts = list(batches)
        with loader.Loader(
            plan, rank, world_size, framework="numpy", micro_batch=micro_batch, **options
        ) as batches:
            length, pieces = len(batches), list(batches)
        assert length == len(pieces)
        out.append((parts, [[one for one in pieces if one.step == part.step] for part in parts]))
        assert [one.step for one in pieces] == sorted(one.step for one in pieces)
    return out


@SETTINGS
@given(
    batch=st.integers(1, 19),
    later=st.integers(1, 19),
    world_size=st.integers(1, 6),
    micro_batch=st.integers(2, 8),
    epochs=st.booleans(),
    workers=st.sampled_from((0, 2)),
)
def test_pieces_are_the_part_and_the_same_number_on_every_rank(
    view, batch, later, world_size, micro_batch, epochs, workers
):
    batch, later = max(batch, world_size), max(later, world_size)
    plan = loader.plan({"web": view}, seed=5, global_batch=[(0, batch), (2, later)])
    bound = {"epochs": 1} if epochs else {"steps": 5}
    ranks = whole_and_pieces(plan, world_size, micro_batch, workers=workers, **bound)
    for step in range(len(ranks[0][0])):
        counts = {len(pieces[step]) for _, pieces in ranks}
        size = plan.batch_size(step)
        assert counts == {-(-max(len(parts[step]) for parts, _ in ranks) // micro_batch)}
        assert counts == {micro_count(size, world_size, micro_batch)}
        every, loss = [], []
        for parts, pieces in ranks:
            part, mine = parts[step], pieces[step]
            assert max(map(len, mine)) <= micro_batch
            assert min(map(len, mine)) >= 1
            assert [one for piece in mine for one in piece.ids] == part.ids
            for field in ("cls", "x.npy"):
                assert np.array_equal(np.concatenate([piece[field] for piece in mine]), part[field])
            assert [one for piece in mine for one in piece["txt"]] == part["txt"]
            assert np.concatenate([piece.mask for piece in mine]).tolist() == part.mask.tolist()
            assert [piece.micro for piece in mine] == list(range(len(mine)))
            assert [piece.last_micro for piece in mine] == [False] * (len(mine) - 1) + [True]
            assert sum(piece.digest for piece in mine) == part.digest
            assert sum(piece.weight for piece in mine) == pytest.approx(part.weight)
            every += part["cls"][part.mask].tolist()
            loss.append(
                sum(piece["cls"][piece.mask].mean() * piece.weight for piece in mine if piece.mask.any())
            )
        # summed over micro batches and averaged over ranks: the sum over samples / global batch
        assert np.mean(loss) == pytest.approx(sum(every) / size)


def test_state_counts_optimizer_steps(view):
    plan = loader.plan({"web": view}, seed=5, global_batch=8)
    with loader.Loader(plan, 0, 1, steps=4, micro_batch=3, framework="numpy") as batches:
        seen = []
        for piece in batches:
            seen.append((piece.step, piece.micro))
            state = batches.state_dict()
            assert batches.step == state["step"] == piece.step + piece.last_micro
            if seen[-1] == (2, 1):
                break
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    with loader.Loader(plan, 0, 1, steps=4, micro_batch=3, framework="numpy") as batches:
        next(batches)
        batches.load_state_dict(state)  # the rest of the step that had begun is forgotten
        assert [(one.step, one.micro) for one in batches] == [
            (step, micro) for step in (2, 3) for micro in range(3)
        ]
        batches.seek(3)
        assert (next(batches).step, next(batches).micro) == (3, 1)
        assert len(batches.batch_at(3)) == 8
        batches.seek(1)
        assert next(batches).step == 1


def test_what_is_of_the_whole_part_comes_with_its_first_piece(view):
    plan = loader.plan({"web": view}, seed=5, global_batch=8)
    with loader.Loader(plan, 0, 1, steps=1, micro_batch=3, framework="numpy") as batches:
        first, second, third = batches
        assert batches.metrics()["samples_total"] == 8
    assert first.stats["samples"] == 8
    assert first.wait_s > 0
    for later in (second, third):
        assert (later.stats, later.wait_s, later.substitutions, later.slowest) == ({}, 0.0, [], None)
    assert first.nbytes + second.nbytes + third.nbytes > 0


def test_buckets_are_cut_by_their_own_batches(versions):
    plan = loader.plan(
        {"photos": versions["photos"].select("cls")},
        seed=5,
        global_batch=13,
        bucket_by=loader.bucket("i", edges=[0, 25, "inf"], batch={"0..25": 8}),
    )
    with loader.Loader(plan, 0, 2, steps=12, micro_batch=4, framework="numpy") as batches:
        length, made = len(batches), list(batches)
    assert length == len(made) == sum({8: 1, 13: 2}[plan.batch_size(step)] for step in range(12))
    assert {len(one) for one in made} == {3, 4}  # parts of 4, 6 and 7


def test_tensors_are_slices_of_the_batchs_memory(view):
    plan = loader.plan({"web": view.select("x.npy")}, seed=5, global_batch=8)
    with loader.Loader(plan, 0, 1, steps=1) as batches:
        (part,) = batches
    pieces = part.micro_batches(3)
    assert [len(piece) for piece in pieces] == [2, 3, 3]
    assert pieces[1]["x.npy"].data_ptr() == part["x.npy"][2:].data_ptr()
    for wrong in (0, 9):
        with refusal(InvalidRuntime, what="micro_batches", given=wrong, accepted="1 to 8"):
            part.micro_batches(wrong)


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "4", True])
def test_sizes_that_are_refused(view, wrong):
    plan = loader.plan({"web": view}, seed=5, global_batch=8)
    with refusal(InvalidRuntime, what="micro_batch", given=wrong):
        loader.Loader(plan, 0, 1, micro_batch=wrong)


def test_pieces_of_one_need_ranks_that_divide_the_batch(view):
    plan = loader.plan({"web": view}, seed=5, global_batch=[(0, 9), (5, 8)])
    with refusal(
        InvalidRuntime, what="micro_batch", where="a global batch of 8 on 3 ranks", given=1, accepted=2
    ):
        loader.Loader(plan, 0, 3, micro_batch=1)
    with loader.Loader(plan, 0, 3, micro_batch=2, steps=6, framework="numpy") as batches:
        assert [len(one) for one in batches][-2:] == [1, 1]


def test_torch_dataset_hands_over_whole_batches(view):
    plan = loader.plan({"web": view}, seed=5, global_batch=8)
    with refusal(InvalidRuntime, what="micro_batch", where="torch_dataset"):
        loader.torch_dataset(plan, 0, 1, micro_batch=2)
