"""Norms of arrays of any length: read in blocks, within bounded memory, bit for bit those of whole arrays."""

import itertools
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.api import norm_reads
from loader.errors import Corrupt, DecodeFailed
from loader.modalities import encode, row_blocks
from loader.run.part_reads import blocked_rows
from tests.refusals import refusal

NUMBERS = itertools.count()


class Relative:
    """Actions less the window's first one."""

    version = "1"

    def __call__(self, window: dict[str, Any]) -> dict[str, Any]:
        return window | {"action.npy": window["action.npy"] - window["action.npy"][:1]}


@pytest.fixture
def root() -> Iterator[loader.Root]:
    with loader.Root(f"memory://norm-blocks-{next(NUMBERS)}") as opened:
        yield opened


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    rule=st.sampled_from(["last", "nearest", "linear"]),
    every=st.integers(1, 7),
    has_blocks=st.booleans(),
    keeps=st.booleans(),
    transforms=st.booleans(),
)
def test_norms_of_blocks_equal_those_of_whole_arrays(
    lengths: list[int], rule: str, every: int, has_blocks: bool, keeps: bool, transforms: bool
) -> None:
    at: dict[str, Any] = {"action.npy": loader.rows(-1, 3), "state.npy": ["-30ms", 0, "15ms"]}
    with (
        loader.Root(f"memory://norms-by-blocks-{next(NUMBERS)}") as root,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(row_blocks, "BLOCK_BYTES", 48)
        patch.setattr(blocked_rows, "PIECE_BYTES", 1000)
        with root.write("arm") as writer:
            for number, n in enumerate(lengths):
                rng = np.random.default_rng([number, n])
                clock = np.cumsum(rng.integers(1, 40, n)) * 10**6
                fields = {
                    "action.npy": rng.normal(number, 2, (n, 2)).astype(np.float32),
                    "action.ns.npy": clock,
                    "state.npy": rng.normal(0, 1, (2 * n, 3)),
                    "state.ns.npy": np.cumsum(rng.integers(1, 20, 2 * n)) * 10**6,
                    "keep.npy": rng.random(n) < 0.7,
                }
                fields = {name: encode(name, value) for name, value in fields.items()}
                rows = {f"{name}.rows": row_blocks.index_rows(data) for name, data in fields.items()}
                writer.add(f"ep{number}", fields | (rows if has_blocks else {}))
        windows = loader.windows(
            root.open("arm@1").select("action.npy", "state.npy"),
            anchor="action.npy",
            at=at,
            every=every,
            rule={"state.npy": rule},
            keep="keep.npy" if keeps else None,
        )
        if not len(windows):
            return
        transform: Any = Relative() if transforms else None
        whole = loader.norm(windows, ["action.npy", "state.npy"], transform=transform)
        data = root.store.get(whole.path).data
        for limit in (700, 1):
            root.store.delete_many([whole.path])
            patch.setattr(norm_reads, "TOGETHER_BYTES", limit)
            blocks = loader.norm(windows, ["action.npy", "state.npy"], transform=transform)
            assert root.store.get(blocks.path).data == data


def test_long_array_is_never_whole_in_memory(tmp_path: Path) -> None:
    n, dims = 3 * 2**17, 64  # 96 MiB
    with loader.Root(str(tmp_path)) as root:
        values = np.random.default_rng(0).integers(-9, 9, (n, dims)).astype(np.float32)
        mean = values.mean(axis=0, dtype=np.float64)
        fields = {"action.npy": encode("action.npy", values)}
        del values
        with root.write("arm") as writer:
            writer.add("ep0", fields)
        del fields
        view = root.open("arm@1").select("action.npy")
        tracemalloc.start()
        windows = loader.windows(view, anchor="action.npy", at={"action.npy": loader.rows(0, 1)}, every=4)
        norm = loader.norm(windows, ["action.npy"])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert norm["action.npy"].n == n // 4
    assert np.abs(norm["action.npy"].mean - mean).max() < 0.5
    assert peak < 80 * 2**20


@pytest.mark.parametrize("at", [100, -100])
def test_long_array_that_was_damaged_is_refused(
    tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norm_reads, "TOGETHER_BYTES", 1000)
    with loader.Root(str(tmp_path)) as root:
        with root.write("arm") as writer:
            writer.add("ep0", {"action.npy": np.ones((400, 2)), "action.ns.npy": np.arange(400)})
        (path,) = tmp_path.glob("data/*/*/*.tar")
        data = bytearray(path.read_bytes())
        start = data.index(b"\x93NUMPY") + 128
        data[start + (at if at > 0 else 6400 + at)] ^= 1
        view = root.open("arm@1").select("action.npy")
        windows = loader.windows(view, anchor="action.npy", at={"action.npy": loader.rows(0, 1)})
        path.write_bytes(data)
        with refusal(Corrupt, what="action.npy", within="'ep0' field 'action.npy'") as damaged:
            loader.norm(windows, ["action.npy"])
        assert damaged.value.given != damaged.value.accepted  # the CRC-32C, and what the index has


@pytest.mark.parametrize("dtype", [np.int64, np.bool_])
def test_linear_of_whole_numbers_is_refused_as_the_loader_does(root: loader.Root, dtype: Any) -> None:
    clock = np.arange(9) * 20_000_000
    with root.write("arm") as writer:
        fields = {"action.npy": np.ones((9, 1)), "state.npy": (np.arange(9) % 2).astype(dtype)}
        writer.add("ep0", fields | {"action.ns.npy": clock, "state.ns.npy": clock + 3})
    for offset in (0, "5ms"):
        windows = loader.windows(
            root.open("arm@1").select("action.npy", "state.npy"),
            anchor="action.npy",
            at={"action.npy": [0], "state.npy": [offset]},
            rule={"state.npy": "linear"},
        )
        with refusal(DecodeFailed, what="state.npy", given=np.dtype(dtype).name, accepted="floats"):
            loader.norm(windows, ["state.npy"])
        plan = loader.plan({"arm": windows}, seed=1, global_batch=1)
        with (
            loader.Loader(plan, framework="numpy", workers=0, on_corrupt="raise") as read,
            refusal(DecodeFailed, what="state.npy", given=np.dtype(dtype).name, accepted="floats"),
        ):
            next(read)
