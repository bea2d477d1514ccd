"""Where models run, and that a process is left as it was."""

from pathlib import Path

import pytest
import torch

from assets.featurizers.models.devices import (
    budget_bytes,
    check_device,
    check_device_name,
    device_gpus,
    is_out_of_memory,
    measure_bytes,
    process_device,
    repeatable,
)
from loader.errors import InvalidSpec, ModelFailed
from penstock.compute.pool.environment import n_gpus, visible_gpus
from tests.refusals import refusal
from tests.servers.processes import python


def test_driver_and_torch_agree() -> None:
    assert n_gpus() == torch.cuda.device_count()
    assert process_device("auto", "") == ("cuda:0" if torch.cuda.is_available() else "cpu")


@pytest.mark.gpu
def test_gpu_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    there = n_gpus()
    assert there == torch.cuda.device_count() > 0
    assert visible_gpus() == device_gpus("auto") == device_gpus("cuda") == tuple(map(str, range(there)))
    assert device_gpus("cuda:0") == ("0",)
    assert device_gpus(f"cuda:{there}") == ()
    assert process_device("auto", "") == process_device("cuda", "") == "cuda:0"
    check_device("cuda:0")
    with pytest.raises(ModelFailed, match=rf"no device cuda:{there} here: torch .* finds {there} GPUs"):
        check_device(f"cuda:{there}")
    free, _ = torch.cuda.mem_get_info(0)
    assert budget_bytes("cuda:0") == pytest.approx(0.8 * free, rel=0.05)
    with pytest.raises(torch.OutOfMemoryError) as refused:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert is_out_of_memory(refused.value)


def test_device_is_settled_where_samples_are_computed() -> None:
    assert process_device("cpu", "cuda:0") == "cpu"
    assert process_device("auto", "cpu") == "cpu"
    assert [process_device(name, "") for name in ("cuda", "cuda:3")] == ["cuda:0", "cuda:3"]
    assert [process_device(name, "cuda:0") for name in ("cuda", "cuda:3")] == ["cuda:0", "cuda:0"]
    with refusal(ModelFailed, what="device", where="this worker", given="cuda"):
        process_device("cuda", "cpu")
    for wrong in ("gpu", "cuda:", "mps", "cpu:1", ""):
        with refusal(InvalidSpec, what="device", given=wrong):
            check_device_name(wrong)


@pytest.mark.parametrize(
    ("told", "there"),
    [("0,1", ("0", "1")), (" GPU-ab , 3", ("GPU-ab", "3")), ("", ()), ("-1", ()), ("2,-1,3", ("2",))],
)
def test_gpus_are_those_that_the_process_sees(
    told: str, there: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", told)
    assert visible_gpus() == device_gpus("auto") == device_gpus("cuda") == there
    assert device_gpus("cuda:1") == there[1:2]
    assert device_gpus("cpu") == ()


def test_device_that_is_not_there_is_said_so() -> None:
    check_device("cpu")
    with refusal(ModelFailed, what="device", given="cuda:99"):
        check_device("cuda:99")


def test_process_is_left_as_it_was() -> None:
    def state() -> tuple[object, ...]:
        return (
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.is_inference_mode_enabled(),
            torch.backends.cudnn.benchmark,
        )

    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("medium")
    before = state()
    try:
        with repeatable(), repeatable():
            assert state() == (1, True, "highest", True, False)
        assert state() == before
        with pytest.raises(ZeroDivisionError), repeatable():
            _ = 1 / 0
        assert state() == before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_memory_that_ran_out_is_recognised() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(refused.value)
    assert budget_bytes("cpu") == 1 << 30


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_memory_is_measured_at_its_peak(place: str) -> None:
    def work() -> int:
        big = torch.ones(384 << 20, dtype=torch.uint8, device=place)
        big = torch.cat([big[: 64 << 20], big[: 64 << 20]])  # 384 and 128 MiB at once, 128 in the end
        return len(big)

    value, taken = measure_bytes(place, work)
    assert value == 128 << 20
    # A process of many tests lets go of some MiB in between.
    assert 480 << 20 <= taken <= 540 << 20


def test_describing_a_model_does_not_import_torch() -> None:
    """Dagster's own processes describe datasets; only workers run models."""
    code = """
import sys
from assets.featurizers import make
from assets.featurizers.models import MODELS
from assets.spec import DatasetSpec, Feature
from dagster_project.definitions import build_defs

networks = {"embedding": "timm", "latent": "diffusers", "caption": "transformers"}
for number, name in enumerate(MODELS):
    feature = Feature(name=name, parameters={"network": networks[name], "weights": "/nowhere/x.safetensors"})
    spec = DatasetSpec(name=f"set{number}", features=(feature,))
    keys = build_defs(datasets=[spec]).resolve_all_asset_keys()
    assert any(key.path[-1] == f"feature_{name}" for key in keys)
print([name for name in ("torch", "safetensors", "transformers") if name in sys.modules])
"""
    root = Path(__file__).parents[4]
    run = python("-c", code, check=True, cwd=root)
    assert run.stdout.strip() == "[]"
