"""Check at a start that the disks of all nodes hold three near steps."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from torch import Tensor, distributed
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

from loader.errors import InvalidRuntime, StoreError

from ..ranks import from_all_ranks, from_first_rank
from .nodes import NearNodes, NodeFacts

STEPS = 3
"""Two near steps stay, and a third one is written."""
MARGIN = 1.02
"""Headers, index and block sizes of the file system, as a factor."""


class RankFacts(NamedTuple):
    """One rank's part of a near step."""

    node: NodeFacts | None
    """None if the rank failed."""
    nbytes: int
    """Bytes of its parts of a step."""
    partner: str | None
    """Node that receives its copies."""
    problem: str
    """Why the rank failed; "" if it did not."""


def rank_bytes(state: Mapping[str, Any], group: Any) -> int:
    """Return the bytes of tensors that this rank writes of a state. Every rank calls it.

    torch saves a tensor that several ranks have once, so that only all plans together say who writes what.

    Raises: an error of a rank's plan, on every rank.
    """
    planner = DefaultSavePlanner()
    is_first = group is None or distributed.get_rank(group) == 0
    plan: SavePlan | Exception
    try:
        planner.set_up_planner(dict(state), is_coordinator=is_first)
        plan = planner.create_local_plan()
    except Exception as error:  # noqa: BLE001 - it is raised on every rank
        plan = error
    plans: list[Any] = [plan]
    if group is not None:
        plans = _on_first_rank(plan, group)

    def sizes() -> list[int]:
        for local_plan in plans:
            if isinstance(local_plan, Exception):
                raise local_plan
        # torch decides here which rank writes a tensor that several have.
        merged, _ = planner.create_global_plan(plans)
        return [_plan_bytes(merged_plan) for merged_plan in merged]

    rank = 0
    if group is not None:
        rank = distributed.get_rank(group)
    all_sizes = from_first_rank(sizes, group)
    return all_sizes[rank]


def state_bytes(value: Any) -> int:
    """Return the bytes of the tensors of a state that are in this process's memory. value: a state, or a part of it."""
    if isinstance(value, DTensor):  # also a Tensor: only this rank's shard counts
        return value.to_local().nbytes
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(state_bytes(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return sum(state_bytes(inner) for inner in value)
    return 0


def check_room(nodes: NearNodes, run: str, step_bytes: int, group: Any) -> None:
    """Tell all ranks each node's block, and check its disk. Every rank calls it.

    step_bytes: of this rank's parts. Raises: InvalidRuntime on every rank if a disk is too small.
    """
    facts = from_all_ranks(_rank_facts(nodes, run, step_bytes), group)
    blocks: dict[str, str] = {}
    for rank in facts:
        if rank.problem:
            raise InvalidRuntime(f"near checkpoints cannot start: {rank.problem}")
        assert rank.node is not None
        blocks[rank.node.address] = rank.node.block
    # The blocks decide the partners, so the second exchange has the final ones.
    nodes.use_blocks(blocks)
    facts = from_all_ranks(_rank_facts(nodes, run, step_bytes), group)
    _check_disks(facts)


def _rank_facts(nodes: NearNodes, run: str, step_bytes: int) -> RankFacts:
    """Return the facts of this rank; a problem instead of an error, so that all ranks raise together."""
    node = None
    problem = ""
    try:
        node = nodes.facts(run)
    except (OSError, StoreError) as error:
        problem = f"{nodes.own}: {error}"
    return RankFacts(
        node,
        step_bytes,
        nodes.partner,
        problem,
    )


def _check_disks(facts: Sequence[RankFacts]) -> None:
    """Raise InvalidRuntime if a node has less room than three steps take."""
    free: dict[str, int] = {}
    needed: dict[str, float] = {}
    for rank in facts:
        if rank.node is None:
            raise InvalidRuntime(f"near checkpoints cannot start: {rank.problem}")
        address = rank.node.address
        free[address] = rank.node.free_bytes
        # A node holds its ranks' parts, and the copies of every rank whose partner it is.
        for holder in (address, rank.partner):
            if holder is not None:
                others = needed.get(holder, 0.0)
                needed[holder] = others + STEPS * MARGIN * rank.nbytes
    for address in sorted(free):
        available = max(0, free[address])
        if available < needed[address]:
            raise InvalidRuntime(
                f"near checkpoints need {needed[address]:,.0f} bytes on {address} for {STEPS} steps, its own parts and "
                f"copies, and {available:,} are free beside the cache's limit: lower limit_bytes of the node cache, "
                "delete near steps of other runs (`penstock checkpoints ls --near`), or use a larger disk",
                what="free bytes",
                where=address,
                given=available,
                accepted=needed[address],
            )


def _on_first_rank(value: Any, group: Any) -> list[Any]:
    """Return the values of all ranks on the first one; an empty list on the others."""
    first = distributed.get_global_rank(group, 0)
    values: list[Any] | None = None
    if distributed.get_rank(group) == 0:
        values = [None] * distributed.get_world_size(group)
    distributed.gather_object(value, values, dst=first, group=group)
    return values or []


def _plan_bytes(plan: SavePlan) -> int:
    """Return the bytes of the tensors that a rank writes under torch's plan."""
    nbytes = 0
    for item in plan.items:
        data = item.tensor_data
        if data is not None:
            nbytes += prod(data.chunk.sizes) * data.properties.dtype.itemsize
    return nbytes
