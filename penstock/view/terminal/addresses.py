"""Addresses of the viewer's pages, as on the web."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPage:
    """The first page, which lists training runs and datasets."""

    @property
    def parent(self) -> "PageAddress | None":
        """The page one level up, or None."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """A training run."""

    run: str
    """Run name or plan hash."""
    unusual: int = 0
    """Index of the first unusual step to list."""

    @property
    def parent(self) -> "PageAddress | None":
        return RootPage()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage:
    """Comparison of two training runs."""

    run: str
    """Name of the first run."""
    other: str
    """Name of the second run."""

    @property
    def parent(self) -> "PageAddress | None":
        return RunPage(run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPage:
    """Consecutive steps of a training run."""

    run: str
    """Run name or plan hash."""
    first: int | None = None
    """First step; None shows the last 100 steps."""
    last: int | None = None
    """Last step."""

    @property
    def parent(self) -> "PageAddress | None":
        return RunPage(run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPage:
    """A rank's part of a step."""

    run: str
    """Run name or plan hash."""
    step: int
    """Global step."""
    rank: int | None = None
    """Data-parallel rank; None selects a recorded rank."""
    world_size: int | None = None
    """Number of ranks; None selects the recorded number."""
    slot: int | None = None
    """Slot under the cursor; None selects the first."""

    @property
    def parent(self) -> "PageAddress | None":
        return RunPage(run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPage:
    """One slot of a step."""

    step: StepPage
    """Step page that it was opened from."""
    slot: int
    """Global slot."""
    explain: bool = False
    """True opens its provenance first."""
    search_from: str | None = None
    """First unopened run to search for the sample; None searches only open runs."""

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
    """SQL filter expression; "" for no filter."""
    sort: str = ""
    """SQL sort expression; "" for the version's own order."""
    first: int = 0
    """Index of the first sample shown among the matches."""

    @property
    def parent(self) -> "PageAddress | None":
        return RootPage()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePage:
    """A sample of a version."""

    version: VersionPage
    """Version page that it was opened from."""
    ordinal: int
    """Index in the version."""
    search_from: str | None = None
    """See `SlotPage`."""

    @property
    def parent(self) -> "PageAddress | None":
        return self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferencePage:
    """The difference between two versions of a dataset."""

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
