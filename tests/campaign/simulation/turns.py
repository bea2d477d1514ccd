"""Who is next: actors are threads of which one runs, until it asks the store for something and another is chosen."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.servers.patience import PATIENCE_S

HOUR_US = 3_600_000_000
MOST_STEPS = 60_000


class Killed(BaseException):
    """The actor's process is gone: none of its code runs any more."""


class Endless(Exception):
    """A world does not come to an end."""


@dataclass(eq=False)
class Actor:
    """A process. offset_us: how far its wall clock is off; booted_us: when its machine was started; not_before_us: it
    does nothing earlier; stalled: it shows no life either until then; slept_us: the longest that it was so."""

    name: str
    kind: str
    job: Callable[["Actor"], None]
    rng: Random
    offset_us: int = 0
    booted_us: int = 0
    not_before_us: int = 0
    stalled: bool = False
    slept_us: int = 0
    dead: bool = False
    done: bool = False
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    beats: dict[int, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class Turns:
    """now_us: what time it is in truth. current: whose turn it is; None while nobody else runs."""

    def __init__(self, seed: object) -> None:
        self.rng = Random(f"turns {seed}")
        self.p_switch = self.rng.choice([0.02, 0.1, 0.3])
        self.p_leap = self.rng.choice([0.0, 0.002, 0.01])
        self.true_us = 1_800_000_000_000_000
        self.step = 0
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.beating = False
        self._over = threading.Event()
        self._failure: BaseException | None = None

    def add(self, actor: Actor) -> None:
        """One more, which waits for its turn."""
        self.actors.append(actor)
        threading.Thread(target=self._live, args=(actor,), daemon=True, name=actor.name).start()

    def run(self) -> None:
        """Until all are done. Raises: Endless; what went wrong with the world itself."""
        if any(not one.done for one in self.actors):
            self._over.clear()
            self._hand_on()
            if not self._over.wait(PATIENCE_S):
                raise Endless("nobody goes on")
        self.current = None
        if self._failure is not None:
            raise self._failure

    def ask(self, actor: Actor, *, at_once: bool) -> int:
        """An actor is about to ask the store for something; the number of the request. at_once: it has a lock that its
        other threads wait for, so nobody else's turn comes. Raises: Killed; Endless."""
        self.step += 1
        self.true_us += 1_000
        if self.step > MOST_STEPS:
            raise Endless(f"{MOST_STEPS} requests, and no end")
        if actor is not self.current or self.beating:
            return self.step
        if actor.dead:
            raise Killed
        number = self.step
        if at_once:
            return number
        if self.rng.random() < self.p_leap:
            self.leap(self.rng.choice([1, 1, 6, 24]) * HOUR_US)
        if actor.stalled or self.rng.random() < self.p_switch:
            self._switch(actor)
        return number

    def sleep(self, actor: Actor, hours: float) -> None:
        """Let so much time pass for an actor, which goes on showing life."""
        actor.not_before_us = self.true_us + int(hours * HOUR_US)
        self._switch(actor)

    def stall(self, actor: Actor, hours: float) -> None:
        """So much time passes, in which it does not show life."""
        actor.stalled = True
        actor.slept_us = max(actor.slept_us, int(hours * HOUR_US))
        self.sleep(actor, hours)
        actor.stalled = False

    def leap(self, us: int) -> None:
        """Time passes, in which everybody shows life who is alive."""
        self.true_us += us
        self.beat_all()

    def beat_all(self) -> None:
        """Whoever is alive shows it."""
        self.beating = True
        try:
            for actor in self.actors:
                if not actor.dead and not actor.stalled:
                    for beat in list(actor.beats.values()):
                        beat()
        finally:
            self.beating = False

    def _switch(self, actor: Actor) -> None:
        following = self._next()
        if following is actor:
            return
        self._give(following)
        if not actor.baton.acquire(timeout=PATIENCE_S):
            raise Endless("nobody goes on")
        if self._failure is not None:
            raise Killed
        self.current = actor

    def _next(self) -> Actor:
        """Whoever may go on, by chance; time passes until somebody may."""
        going = [one for one in self.actors if not one.done]
        while not (ready := [one for one in going if one.not_before_us <= self.true_us]):
            self.leap(min(one.not_before_us for one in going) - self.true_us)
        return self.rng.choice(ready)

    def _give(self, actor: Actor) -> None:
        self.current = actor
        actor.baton.release()

    def _hand_on(self) -> None:
        if any(not one.done for one in self.actors) and self._failure is None:
            self._give(self._next())
        else:
            self._over.set()

    def _live(self, actor: Actor) -> None:
        actor.baton.acquire()
        self.current = actor
        try:
            if self._failure is None:
                actor.job(actor)
        except Killed:
            actor.dead = True
        except BaseException as error:  # noqa: BLE001 - the world ends with it
            self._fails(error)
        actor.done = True
        try:
            self._hand_on()
        except BaseException as error:  # noqa: BLE001 - the world ends with it
            self._fails(error)
            self._over.set()

    def _fails(self, error: BaseException) -> None:
        """The world ends; whoever waits is let go."""
        if self._failure is None:
            self._failure = error
            for one in self.actors:
                one.baton.release()
