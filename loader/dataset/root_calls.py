"""Calls of a root by the modules below it. `Root` has all of these, and they need not import it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..storage import Store
from .log.heartbeats import Heartbeat
from .log.log import Log
from .log.state import State
from .shards.part import Part
from .versions.version import Version


class RootCalls(Protocol):
    """A root that publishes versions: see `Root` for what each call returns and raises."""

    @property
    def store(self) -> Store: ...

    @property
    def log(self) -> Log: ...

    @property
    def state(self) -> State: ...

    def create(self) -> None: ...

    def open(self, ref: str, *, retired: bool = False) -> Version: ...

    def begin(
        self, dataset: str, parent: str | None = None, txn: str | None = None, *, gated: bool = False
    ) -> str: ...

    def abort(self, txn: str, reason: str) -> None: ...

    def heartbeat(self, txn: str) -> Heartbeat: ...

    def publish(
        self,
        dataset: str,
        parts: Sequence[Part],
        parent: str | None = None,
        *,
        producer: Mapping[str, Any] | None = None,
        facts: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Version: ...
