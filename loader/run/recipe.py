"""What decides what a batch holds at a rank, beside the step."""

from dataclasses import dataclass

from ..dataset.view import View
from ..errors import InvalidRuntime
from ..order.assign import rank_slice
from ..order.packed_view import PackedView
from ..order.plan import Plan
from ..order.views import OrderView
from .decode import Decode, Transform
from .world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what a batch holds at a rank; none of it changes which samples are planned.

    position_limit: stream positions from here on are padding. substitute: whether corrupt samples are substituted.
    """

    plan: Plan
    world: World
    decode: Decode
    transform: Transform | None
    framework: str
    position_limit: int | None
    substitute: bool

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Plan):
            raise InvalidRuntime(
                f"plan = {self.plan!r}: a plan is needed, such as loader.plan({{'photos': version}}, seed=7, "
                "global_batch=64), or loader.open_plan(root, hash)"
            )
        if self.transform is not None and not callable(self.transform):
            raise InvalidRuntime(
                f"transform = {self.transform!r}; accepted: None, or a function (sample, rng) -> sample"
            )
        rank_slice(self.plan.batch_range[0], self.world.rank, self.world.world_size)
        if self.plan.pack is not None and self.decode is False:
            raise InvalidRuntime(
                "decode=False with a packed plan: its sequences are made of decoded tokens; leave it True"
            )
        for name, source in self.plan.sources.items():
            if stored_view(source.view) is None:
                raise InvalidRuntime(
                    f"source {name!r} is a {type(source.view).__name__} without bytes; a Loader needs views of "
                    "versions (loader.synthetic is for planning only)"
                )

    @property
    def views(self) -> list[View]:
        """What is read of the plan's sources, in their order."""
        return stored_views(self.plan)


def stored_views(plan: Plan) -> list[View]:
    """The views of versions that a plan reads, source by source; of a packed source, its documents'."""
    views = (stored_view(source.view) for source in plan.sources.values())
    return [view for view in views if view is not None]


def stored_view(view: OrderView) -> View | None:
    """What is read of a view: itself, or the documents of a packed one; None for one without bytes."""
    found = view.documents if isinstance(view, PackedView) else view
    return found if isinstance(found, View) else None
