"""Addresses of the viewer's pages, as on the web."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAddress:
    """An address of a page."""

    @property
    def parent(self) -> "PageAddress | None":
        """One level up; or None."""
        return RootPage()


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPage(PageAddress):
    """The first page: training runs and datasets."""

    @property
    def parent(self) -> PageAddress | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage(PageAddress):
    """A training run."""

    run: str
    """Run name or plan hash."""
    unusual: int = 0
    """Index of the first unusual step listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOfRun(PageAddress):
    """A page below a training run's."""

    run: str
    """Run name or plan hash."""

    @property
    def parent(self) -> PageAddress | None:
        return RunPage(run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage(PageOfRun):
    """Two training runs."""

    other: str
    """Second run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPage(PageOfRun):
    """Consecutive steps of a training run."""

    first: int | None = None
    """First step; None for the last 100."""
    last: int | None = None
    """Last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPage(PageOfRun):
    """A rank's part of a step."""

    step: int
    """Global step."""
    rank: int | None = None
    """Data-parallel; None for a recorded one."""
    world_size: int | None = None
    """Ranks; None for the recorded number."""
    slot: int | None = None
    """Under the cursor; None for the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPage(PageAddress):
    """One slot of a step."""

    step: StepPage
    """The page that opened it."""
    slot: int
    """Global slot."""
    explain: bool = False
    """Open its provenance first."""
    search_from: str | None = None
    """First unopened run to search; None searches open ones."""

    @property
    def parent(self) -> PageAddress | None:
        return replace(self.step, slot=self.slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPage(PageAddress):
    """A page of a version's samples."""

    dataset: str
    """Dataset name."""
    number: int
    where: str = ""
    """SQL filter, or ""."""
    sort: str = ""
    """SQL; "" for the version's order."""
    first: int = 0
    """Index of the first sample among the matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePage(PageAddress):
    """A sample of a version."""

    version: VersionPage
    """The page that opened it."""
    ordinal: int
    """Index in the version."""
    search_from: str | None = None
    """See `SlotPage`."""

    @property
    def parent(self) -> PageAddress | None:
        return self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferencePage(PageAddress):
    """Two versions of a dataset."""

    dataset: str
    """Dataset name."""
    number: int
    """First version's number."""
    other: int
    """Second version's number."""

    @property
    def parent(self) -> PageAddress | None:
        return VersionPage(dataset=self.dataset, number=self.other)
