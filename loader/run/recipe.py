"""What decides what a batch holds at a rank, beside the step."""

from dataclasses import dataclass

from ..dataset.view import View
from ..errors import InvalidRuntime
from ..order.assign import rank_slice
from ..order.plan import Plan
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
        rank_slice(self.plan.batch_range[0], self.world.rank, self.world.world_size)
        for name, source in self.plan.sources.items():
            if not isinstance(source.view, View):
                raise InvalidRuntime(
                    f"source {name!r} is a {type(source.view).__name__} without bytes; a Loader needs views of "
                    "versions (loader.synthetic is for planning only)"
                )

    @property
    def views(self) -> list[View]:
        """Of the plan's sources, in their order."""
        return [source.view for source in self.plan.sources.values() if isinstance(source.view, View)]
