"""Addresses of the viewer's pages, as the web has them: a run, a step, a slot, a version, a sample, a difference."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPlace:
    """The first page: trainings and datasets."""

    @property
    def parent(self) -> "Place | None":
        """The page above; None for none."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """A training."""

    run: str
    """Run, or hash of a plan."""
    unusual: int = 0
    """Place of the first unusual step that is listed."""

    @property
    def parent(self) -> "Place | None":
        """The first page."""
        return RootPlace()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstPlace:
    """A training held against another."""

    run: str
    """First run."""
    other: str
    """Second run."""

    @property
    def parent(self) -> "Place | None":
        """The first run."""
        return RunPlace(run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlace:
    """Consecutive steps of a training."""

    run: str
    """Run, or hash of a plan."""
    first: int | None = None
    """First step; None for the last 100 steps."""
    last: int | None = None
    """Last step."""

    @property
    def parent(self) -> "Place | None":
        """The run."""
        return RunPlace(run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlace:
    """A rank's part of a step."""

    run: str
    """Run, or hash of a plan."""
    step: int
    """Global step."""
    rank: int | None = None
    """Data-parallel rank; None for one that is recorded."""
    world_size: int | None = None
    """Number of ranks; None for that of the record."""
    slot: int | None = None
    """Slot with the cursor; None for the first."""

    @property
    def parent(self) -> "Place | None":
        """The run."""
        return RunPlace(run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlace:
    """One slot of a step."""

    step: StepPlace
    """The part of the step that it was opened from."""
    slot: int
    """Number of the slot in the global batch."""
    explain: bool = False
    """True to begin with the way back of its sample."""
    asked: str | None = None
    """Run from which on runs that are not open are asked for the sample; None asks none of them."""

    @property
    def parent(self) -> "Place | None":
        """The step, with the cursor at this slot."""
        at = self.step
        return StepPlace(run=at.run, step=at.step, rank=at.rank, world_size=at.world_size, slot=self.slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPlace:
    """A page of a version's samples."""

    dataset: str
    """Name of the dataset."""
    number: int
    """Number of the version."""
    where: str = ""
    """SQL expression of the filter; "" for none."""
    sort: str = ""
    """SQL expression of the order; "" for the version's own."""
    first: int = 0
    """Place of the first sample shown, among those found."""

    @property
    def parent(self) -> "Place | None":
        """The first page."""
        return RootPlace()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlace:
    """A sample of a version."""

    version: VersionPlace
    """The page of the version that it was opened from."""
    ordinal: int
    """Number of the sample in the version."""
    asked: str | None = None
    """Run from which on runs that are not open are asked for the sample; None asks none of them."""

    @property
    def parent(self) -> "Place | None":
        """The page of the version."""
        return self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferencePlace:
    """The difference of two versions of a dataset."""

    dataset: str
    """Name of the dataset."""
    number: int
    """Number of the first version."""
    other: int
    """Number of the second version."""

    @property
    def parent(self) -> "Place | None":
        """The second version."""
        return VersionPlace(dataset=self.dataset, number=self.other)


RunPages = RunPlace | AgainstPlace | WindowPlace | StepPlace | SlotPlace
Place = RootPlace | RunPages | VersionPlace | SamplePlace | DifferencePlace
