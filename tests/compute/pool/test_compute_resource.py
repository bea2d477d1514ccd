"""The engine inside a Dagster run."""

import os

import dagster as dg
import pytest

from loader.errors import InvalidRuntime
from penstock.compute.pool import ENGINES, InlineCompute, LocalCompute
from resources.compute import ComputeResource
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_inside_a_run(engine, units, children) -> None:
    @dg.asset
    def rows(compute: ComputeResource) -> dg.MaterializeResult[None]:
        with compute.opened() as opened:
            found = list(opened.map(units.fail, range(6), timeout_s=PATIENCE_S))
        values = [outcome.value for outcome in found if outcome.ok]
        return dg.MaterializeResult(metadata={"values": values, "failed": len(found) - len(values)})

    before = children()
    resource = ComputeResource(engine=engine, workers=2)
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize([rows], resources={"compute": resource}, instance=instance)
    assert done.success
    (event,) = done.asset_materializations_for_node("rows")
    assert (event.metadata["values"].value, event.metadata["failed"].value) == ([0, 2, 3, 5], 2)
    assert children() == before


def test_resource_opens_what_it_names() -> None:
    with ComputeResource().opened() as compute:
        assert isinstance(compute, LocalCompute)
    with ComputeResource(engine="inline").opened() as compute:
        assert isinstance(compute, InlineCompute)


@pytest.mark.parametrize("options", [{"engine": "cloud"}, {"workers": -1}])
def test_what_the_resource_refuses(options) -> None:
    ((name, value),) = options.items()
    with refusal(InvalidRuntime, what=name, given=value), ComputeResource(**options).opened():
        pass


def test_no_worker_outlives_a_failed_step(units, children, fifo) -> None:
    @dg.asset
    def rows(compute: ComputeResource) -> None:
        with compute.opened() as opened:
            for outcome in opened.map(units.hold, ["", fifo], timeout_s=PATIENCE_S):
                os.close(os.open(fifo, os.O_RDONLY))
                raise KeyError(outcome.value)

    before = children()
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize(
            [rows], resources={"compute": ComputeResource(workers=2)}, instance=instance, raise_on_error=False
        )
    assert not done.success
    assert children() == before
