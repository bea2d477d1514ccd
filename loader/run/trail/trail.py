"""`Trail`: where and how a training run keeps its run log."""

import re
from dataclasses import dataclass
from typing import Literal

from ...dataset.root import Root
from ...errors import InvalidName, InvalidRuntime

MAX_CODE_CHARS = 2000
_RUN = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,100}")
_RECIPE = re.compile(r"[\w.]+:[\w.]+")


@dataclass(frozen=True, slots=True)
class Trail:
    """A run log (trail) for `Loader(plan, trail=...)`, from which the run's steps can be inspected later.

    It never ends a training run: a failed write is logged, and retried with the next one. Raises: InvalidName;
    InvalidRuntime.
    """

    root: Root
    """Root of the run log and the plan. The job may create objects under `trails/` and `plans/`."""
    run: str
    """Name of the run: 1 to 100 characters of A-Z a-z 0-9 . _ -. A resumed run keeps it."""
    recipe: str = ""
    """Function that returns the run's decode and transform, as "module:function"; "" if there is none."""
    ranks: Literal["first", "all"] | tuple[int, ...] = "first"
    """Data-parallel ranks to record: "first", "all", or their numbers."""
    tensors_every: int = 100
    """Steps between two records of tensor checksums; 0 records none."""
    code: str = ""
    """Text about the run's code, such as a commit. Passwords in URLs are removed."""

    def __post_init__(self) -> None:
        if not isinstance(self.root, Root):
            raise InvalidRuntime(f"Trail: root = {self.root!r}; a loader.Root is needed")
        check_run_name(self.run)
        if not isinstance(self.recipe, str) or (self.recipe and not _RECIPE.fullmatch(self.recipe)):
            raise InvalidRuntime(f"Trail: recipe = {self.recipe!r}; 'module:function' is needed, or ''")
        ranks = self.ranks
        if ranks not in ("first", "all") and not (
            isinstance(ranks, tuple) and ranks and all(type(rank) is int and rank >= 0 for rank in ranks)
        ):
            raise InvalidRuntime(f"Trail: ranks = {ranks!r}; accepted: 'first', 'all', or a tuple of ranks")
        if type(self.tensors_every) is not int or self.tensors_every < 0:
            raise InvalidRuntime(
                f"Trail: tensors_every = {self.tensors_every!r}; a number of steps is needed, 0 for never"
            )
        if not isinstance(self.code, str) or len(self.code) > MAX_CODE_CHARS:
            raise InvalidRuntime(
                f"Trail: code = {self.code!r:.100}; a text of at most {MAX_CODE_CHARS} characters is needed"
            )

    def records(self, rank: int) -> bool:
        return self.ranks == "all" or (rank == 0 if self.ranks == "first" else rank in self.ranks)


def is_run_name(run: object) -> bool:
    return isinstance(run, str) and _RUN.fullmatch(run) is not None


def check_run_name(run: object) -> str:
    if not isinstance(run, str) or not is_run_name(run):
        raise InvalidName(f"run = {run!r:.200}: 1 to 100 of A-Z a-z 0-9 . _ - are needed, not only dots")
    return run
