"""The compute engine as a Dagster resource."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import dagster as dg
from pydantic import Field

from .contract import Compute
from .engines import open_compute


class ComputeResource(dg.ConfigurableResource[None]):
    """Where heavy work runs. Changes how long a run takes, never what it writes."""

    engine: str = Field(
        default="local", description="local: processes on this machine; inline: no isolation."
    )
    workers: int = Field(default=0, description="How many units run at once; 0: one per core.")

    @contextmanager
    def opened(self) -> Iterator[Compute]:
        """The open engine; nothing of it runs on afterwards. Raises: InvalidRuntime."""
        with closing(open_compute(self.engine, self.workers or None)) as compute:
            yield compute
