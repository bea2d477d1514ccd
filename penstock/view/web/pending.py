"""Pages that are made in threads. A browser that waits for one gets a page that says so, and asks again."""

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial

from anyio import CapacityLimiter
from starlette.responses import PlainTextResponse, Response

from ..daemon_threads import DaemonThreads

PATIENCE_S = 1.5
"""Seconds that a browser waits for a page before it gets the page that shows the progress."""
KEPT_S = 10.0
"""Seconds that a page is kept which nobody has come back for."""
_THREADS = DaemonThreads()


async def in_thread(limiter: CapacityLimiter, make: Callable[[], Response]) -> Response:
    """Return a response that is made in a thread, which the end of the server does not wait for."""
    async with limiter:
        try:
            return await asyncio.get_running_loop().run_in_executor(_THREADS, make)
        except asyncio.CancelledError:  # of the server's end: the browser gets an answer
            return PlainTextResponse("the viewer ends", 503)


@dataclass(slots=True, eq=False)
class _Pending:
    task: "asyncio.Task[Response]"
    began_at: float = field(default_factory=time.monotonic)
    done_at: float | None = None

    def ended(self, _: object) -> None:
        self.done_at = time.monotonic()

    def is_old(self) -> bool:
        return self.done_at is not None and time.monotonic() - self.done_at > KEPT_S


class PendingPages:
    """Pages that are being made, by their address: who asks again waits for the same page."""

    def __init__(self) -> None:
        self._pages: dict[Hashable, _Pending] = {}

    async def get(
        self,
        key: Hashable,
        limiter: CapacityLimiter,
        make: Callable[[], Response],
        progress: Callable[[float], Response],
    ) -> Response:
        """Return the response of `make`, or of `progress` with the seconds so far while it is not done."""
        for old in [one for one, page in self._pages.items() if page.is_old()]:
            del self._pages[old]
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = _Pending(asyncio.create_task(in_thread(limiter, make)))
            page.task.add_done_callback(page.ended)
        done, _ = await asyncio.wait({page.task}, timeout=PATIENCE_S)
        seconds = time.monotonic() - page.began_at
        if not done:
            return await in_thread(limiter, partial(progress, seconds))
        self._pages.pop(key, None)
        return page.task.result()
