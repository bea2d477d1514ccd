"""The compute engine as a Dagster resource."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import dagster as dg
from pydantic import Field

from penstock.compute.pool import Compute, open_compute


class ComputeResource(dg.ConfigurableResource[None]):
    """Engine of heavy work. Changes how long a run takes, never what it writes."""

    engine: str = Field(
        default="local", description="local: processes on this machine; inline: no isolation."
    )
    workers: int = Field(default=0, description="How many units run at once; 0: one per core.")
    variables: list[str] = Field(
        default_factory=list,
        description="Variables of the environment that workers need besides the short list and their stores' own; "
        "'ACME_*' are all that begin so.",
    )

    @contextmanager
    def opened(self) -> Iterator[Compute]:
        """Yield the open engine; nothing of it runs on afterwards. Raises: InvalidRuntime."""
        with closing(open_compute(self.engine, self.workers or None, self.variables)) as compute:
            yield compute
