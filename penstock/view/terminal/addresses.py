"""Addresses of the viewer's pages, as on the web."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPage:
    """The first page: trainings and datasets."""

    @property
    def parent(self) -> "PageAddress | None":
        """The page above; None without one."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """A training."""

    run: str
    """Run, or hash of a plan."""
    unusual: int = 0
    """Index of the first unusual step listed."""

    @property
    def parent(self) -> "PageAddress | None":
        return RootPage()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage:
    """Comparison of two trainings."""

    run: str
    """First run."""
    other: str
    """Second run."""

    @property
    def parent(self) -> "PageAddress | None":
        return RunPage(run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPage:
    """Consecutive steps of a training."""

    run: str
    """Run, or hash of a plan."""
    first: int | None = None
    """First step; None for the last 100 steps."""
    last: int | None = None
    """Last step."""

    @property
    def parent(self) -> "PageAddress | None":
        return RunPage(run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPage:
    """A rank's part of a step."""

    run: str
    """Run, or hash of a plan."""
    step: int
    """Global step."""
    rank: int | None = None
    """Data-parallel rank; None for a recorded one."""
    world_size: int | None = None
    """Number of ranks; None for the recorded number."""
    slot: int | None = None
    """Slot with the cursor; None for the first."""

    @property
    def parent(self) -> "PageAddress | None":
        return RunPage(run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPage:
    """One slot of a step."""

    step: StepPage
    """Part of the step that it was opened from."""
    slot: int
    """Global slot."""
    explain: bool = False
    """True to open its provenance first."""
    search_from: str | None = None
    """Run from which on unopened runs are searched for the sample; None searches none."""

    @property
    def parent(self) -> "PageAddress | None":
        at = self.step
        return StepPage(run=at.run, step=at.step, rank=at.rank, world_size=at.world_size, slot=self.slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPage:
    """A page of a version's samples."""

    dataset: str
    """Dataset name."""
    number: int
    """Version number."""
    where: str = ""
    """SQL expression of the filter; "" for none."""
    sort: str = ""
    """SQL expression of the order; "" for the version's order."""
    first: int = 0
    """Index of the first sample shown, among the matches."""

    @property
    def parent(self) -> "PageAddress | None":
        return RootPage()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePage:
    """A sample of a version."""

    version: VersionPage
    """Page of the version that it was opened from."""
    ordinal: int
    """Number in the version."""
    search_from: str | None = None
    """As in `SlotPage`."""

    @property
    def parent(self) -> "PageAddress | None":
        return self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferencePage:
    """The difference of two versions of a dataset."""

    dataset: str
    """Dataset name."""
    number: int
    """Number of the first version."""
    other: int
    """Number of the second version."""

    @property
    def parent(self) -> "PageAddress | None":
        return VersionPage(dataset=self.dataset, number=self.other)


TrainingPages = RunPage | ComparisonPage | WindowPage | StepPage | SlotPage
PageAddress = RootPage | TrainingPages | VersionPage | SamplePage | DifferencePage
