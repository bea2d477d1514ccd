"""Rows get the same bits whatever batch they are in; batches grow and shrink with what fits."""

import gc
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assets.featurizers.models.batching import ModelBatches, Row, row_shape
from assets.featurizers.models.devices import repeatable
from loader.errors import ModelFailed
from tests.refusals import refusal

Run = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]

WIDTH = 48
ON_BOTH = pytest.mark.parametrize(
    ("place", "least"), [("cpu", 2), pytest.param("cuda:0", 8, marks=pytest.mark.gpu)]
)
"""Where models run, and the rows of the smallest batch there."""


@pytest.fixture(autouse=True, scope="module")
def _settings() -> Iterator[None]:
    with repeatable():
        batches(product).results(random_rows(1))
        # Batches call the garbage collector some hundred times: it need not look through what torch imported just now.
        gc.collect()
        gc.freeze()
        yield


def random_rows(n: int, seed: int = 0, width: int = WIDTH) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=width).astype(np.float32)} for _ in range(n)]


def batches(
    run: Run,
    *,
    batch_size: int = 1,
    max_batch_size: int = 1,
    memory_bytes: int = 1 << 40,
    place: str = "cpu",
) -> ModelBatches:
    return ModelBatches(
        run,
        place=place,
        dtype=torch.float32,
        batch_size=batch_size,
        max_batch_size=max_batch_size,
        memory_bytes=memory_bytes,
    )


@cache
def bits_alone(run: Run, batch_size: int, place: str = "cpu") -> list[bytes]:
    """Of 40 rows, each by itself."""
    alone = batches(run, batch_size=batch_size, place=place)
    return [bits(alone.results([row]))[0] for row in random_rows(40)]


def bits(rows: list[Row]) -> list[bytes]:
    return [b"".join(row[name].tobytes() for name in sorted(row)) for row in rows]


MATRIX = torch.from_numpy(np.random.default_rng(1).normal(size=(WIDTH, 32)).astype(np.float32))


def product(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """One row goes through another kernel than several: on most CPUs with other last bits."""
    return {"y": batch["x"] @ MATRIX.to(batch["x"].device)}


def each_alone(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The same bits in a batch of any size."""
    return {"y": torch.cat([row[None].sin() for row in batch["x"]])}


class Limited:
    """A model that runs out of memory above `limit` rows, as a GPU would; sizes: of the batches that it saw."""

    def __init__(self, run: Run, limit: int) -> None:
        self.run, self.limit, self.sizes = run, limit, list[int]()

    def __call__(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        n = len(batch["x"])
        self.sizes.append(n)
        if n > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.run(batch)


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    max_batch_size=st.integers(1, 64),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_row_has_the_same_bits_in_any_batch(
    place: str, n: int, batch_size: int, max_batch_size: int, cuts: list[int]
) -> None:
    every = random_rows(n)
    sizes = {"batch_size": batch_size, "max_batch_size": max_batch_size}
    for run in (product, each_alone):
        alone = bits_alone(run, batch_size, place)[:n]
        assert bits(batches(run, **sizes, place=place).results(every)) == alone
        grown = batches(run, **sizes, place=place)
        bounds = [0, *sorted(min(cut, n) for cut in cuts), n]
        pieces = [every[start:stop] for start, stop in pairwise(bounds)]
        assert [bit for piece in pieces for bit in bits(grown.results(piece))] == alone
        assert bits(grown.results(every[::-1]))[::-1] == alone


def test_larger_batches_are_used_where_they_give_the_same_bits() -> None:
    model = Limited(each_alone, 1000)
    grown = batches(model, batch_size=2, max_batch_size=100)
    grown.results(random_rows(198))
    (fit,) = grown.fits.values()
    assert (fit.same, fit.other, fit.ceiling) == ({2, 4, 64}, set(), 64)
    assert max(model.sizes) == 64
    model.sizes.clear()
    grown.results(random_rows(128, seed=2))
    assert model.sizes == [64, 64]
    model.sizes.clear()
    grown.results(random_rows(71, seed=3))
    assert model.sizes == [64, 4, 2, 2]  # what is left over, the last one filled up


@settings(derandomize=True, max_examples=30, deadline=None)
@given(
    sizes=st.sets(st.sampled_from([4, 8, 16, 32, 64])),
    n=st.lists(st.integers(1, 150), min_size=1, max_size=4),
)
def test_larger_batches_with_other_bits_are_not_used(sizes: set[int], n: list[int]) -> None:
    """Whichever sizes have them: a kernel is chosen by the size, and not by whether it is large."""

    def by_size(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        shift = 1 + 2.0**-23 if len(batch["x"]) in sizes else 1.0  # one bit
        return {"y": batch["x"] * shift}

    grown = batches(by_size, batch_size=2, max_batch_size=64)
    for seed, n_rows in enumerate(n):
        every = random_rows(n_rows, seed)
        assert bits(grown.results(every)) == [row["x"].tobytes() for row in every]
    (fit,) = grown.fits.values()
    assert fit.other <= sizes
    assert not fit.same & sizes


@pytest.mark.parametrize("limit", [2, 3, 8, 40])
def test_batches_are_halved_when_memory_runs_out_and_that_is_remembered(limit: int) -> None:
    model = Limited(each_alone, limit)
    grown = batches(model, batch_size=2, max_batch_size=64)
    every = random_rows(256)
    assert bits(grown.results(every)) == bits(batches(each_alone, batch_size=2).results(every))
    (fit,) = grown.fits.values()
    assert fit.ceiling == {2: 2, 3: 2, 8: 8, 40: 32}[limit]
    model.sizes.clear()
    grown.results(every)
    assert set(model.sizes) == {fit.ceiling}
    model.limit = 2  # somebody else took memory meanwhile
    assert bits(grown.results(every)) == bits(batches(each_alone, batch_size=2).results(every))
    assert fit.ceiling == 2
    model.sizes.clear()
    grown.results(every)
    assert set(model.sizes) == {2}


def one_more(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """64 MiB of memory a row. The mean of ones is exact in any order."""
    x = batch["x"]
    return {"y": x + torch.ones(len(x), 16 << 20, device=x.device).mean(dim=1, keepdim=True)}


@pytest.mark.gpu
def test_gpu_that_runs_out_of_memory_gets_half_of_the_rows() -> None:
    """Of 3 GiB: 64 rows take more, 32 do not."""
    whole = torch.cuda.get_device_properties(0).total_memory
    every = random_rows(256)
    wanted = bits(batches(one_more, batch_size=8, place="cuda:0").results(every))
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((3 << 30) / whole)
    try:
        grown = batches(one_more, batch_size=8, max_batch_size=256, place="cuda:0")
        assert bits(grown.results(every)) == wanted
        (fit,) = grown.fits.values()
        assert (fit.ceiling, max(fit.same), fit.other) == (32, 32, set())
        torch.cuda.empty_cache()
        held = torch.empty(
            6 << 28, dtype=torch.uint8, device="cuda"
        )  # as another model of this process would
        assert bits(grown.results(every)) == wanted
        assert fit.ceiling == 16
        more = torch.empty(5 << 28, dtype=torch.uint8, device="cuda")
        with pytest.raises(ModelFailed, match=r"8 rows of x \(48,\) does not fit into the memory of cuda:0"):
            grown.results(every)
        del held, more
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def test_smallest_batch_that_does_not_fit_is_an_error() -> None:
    with refusal(ModelFailed, what="batch_size", where="cpu", given="x (48,)"):
        batches(Limited(each_alone, 3), batch_size=4).results(random_rows(1))


def test_error_of_the_model_is_not_taken_for_a_lack_of_memory() -> None:
    def raise_shape_error(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError) as raised:
        batches(raise_shape_error).results(random_rows(1))
    assert raised.value.args == ("shapes cannot be multiplied",)


@ON_BOTH
def test_first_batch_says_what_the_memory_holds(place: str, least: int) -> None:
    def hungry(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        x = batch["x"]
        # 40 MiB a row: of less the allocator may have some left that an earlier test gave back.
        return {"y": x + torch.ones(len(x), 10 << 20, device=x.device).sum(dim=1, keepdim=True)}

    grown = batches(
        hungry, batch_size=least, max_batch_size=32 * least, memory_bytes=least * (180 << 20), place=place
    )
    grown.results(random_rows(least))
    (fit,) = grown.fits.values()
    assert 35 << 20 <= fit.row_bytes <= 50 << 20
    assert fit.ceiling == 4 * least


def test_shapes_are_known_apart() -> None:
    grown = batches(each_alone, batch_size=1, max_batch_size=8)
    for width in (3, 5):
        grown.results(random_rows(8, width=width))
    assert set(grown.fits) == {row_shape(row) for width in (3, 5) for row in random_rows(1, width=width)}


def subtract_batch_mean(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    x = batch["x"]
    return {"y": x - x.mean(dim=0)}


def by_place(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    x = batch["x"]
    return {"y": x + torch.arange(len(x))[:, None]}


@pytest.mark.parametrize("run", [subtract_batch_mean, by_place])
def test_model_whose_rows_see_one_another_is_refused(run: Run) -> None:
    with refusal(ModelFailed, what="batch_size", where="cpu", given=4):
        batches(run, batch_size=4).results(random_rows(4))


def test_model_that_draws_is_refused() -> None:
    def dropout_model(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"y": torch.nn.functional.dropout(batch["x"])}

    with refusal(ModelFailed, what="random draws", where="cpu"):
        batches(dropout_model).results(random_rows(1))


def test_result_without_an_axis_of_rows_is_refused() -> None:
    with refusal(ModelFailed, what="y", where="cpu", given=()):
        batches(lambda batch: {"y": batch["x"].sum()}, batch_size=2).results(random_rows(2))


@ON_BOTH
def test_floats_have_the_model_s_dtype_and_come_back_exactly(place: str, least: int) -> None:
    seen = {}

    def run(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        seen.update({name: value.dtype for name, value in batch.items()})
        assert {str(value.device) for value in batch.values()} == {place}
        return {"half": batch["x"] * 2, "whole": batch["n"] + 1}

    half = ModelBatches(
        run, place=place, dtype=torch.bfloat16, batch_size=least, max_batch_size=least, memory_bytes=0
    )
    (row,) = half.results([{"x": np.array([1.5, -3], np.float32), "n": np.array([7], np.uint8)}])
    assert seen == {"x": torch.bfloat16, "n": torch.uint8}
    assert (row["half"].dtype, row["half"].tolist()) == (np.float32, [3, -6])
    assert (row["whole"].dtype, row["whole"].tolist()) == (np.uint8, [8])


def test_no_rows_have_no_results() -> None:
    assert batches(product).results([]) == []
