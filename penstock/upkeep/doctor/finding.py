"""The doctor's findings, in four levels, and its report."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

WIDTH = 118
"""Line width in characters."""
Level = Literal["ok", "note", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one probe or question."""

    check: str
    """Check name."""
    level: Level
    """`ok`; `note`: a fact or an open question; `warn`: a future cost; `fail`: the store cannot hold a root."""
    what: str
    """Result."""
    do: str = ""
    """Advice, or ""."""

    def to_text(self) -> str:
        """Return 'fail  ranges   what ...', followed by the advice."""
        head = f"{self.level:<5} {self.check:<17} "
        lines = textwrap.wrap(self.what, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
        if self.do:
            lines += textwrap.wrap(
                self.do,
                WIDTH,
                initial_indent=f"{'':<24}-> ",
                subsequent_indent=" " * 27,
                break_long_words=False,
            )
        return "\n".join(lines)


def ok(check: str, what: str) -> Finding:
    """Return a finding that reports no problem."""
    return Finding(check=check, level="ok", what=what)


def note(check: str, what: str, do: str = "") -> Finding:
    """Return a neutral finding."""
    return Finding(check=check, level="note", what=what, do=do)


def warn(check: str, what: str, do: str) -> Finding:
    """Return a finding about a future cost."""
    return Finding(check=check, level="warn", what=what, do=do)


def fail(check: str, what: str, do: str) -> Finding:
    """Return a finding that rules out a root in this store."""
    return Finding(check=check, level="fail", what=what, do=do)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """All findings about one store."""

    url: str
    """Store's URL."""
    findings: Sequence[Finding]
    """Findings, in order of examination."""
    native: str
    """Implementation that reads and checks samples from disk on this machine."""

    @property
    def failed(self) -> bool:
        """True if the store cannot hold a root."""
        return any(finding.level == "fail" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "failed": self.failed}

    def to_text(self) -> str:
        """Return a line per finding, and the verdict."""
        lines = [f"penstock doctor {self.url}", "", *(finding.to_text() for finding in self.findings)]
        return "\n".join([*lines, "", f"samples of a disk are read by: {self.native}", self._verdict()])

    def _verdict(self) -> str:
        """Return the last line: the number of findings of each level, and whether a root may be here."""
        levels = [finding.level for finding in self.findings]
        counts = [f"{levels.count(level)} {level}" for level in ("ok", "note", "warn", "fail")]
        end = "fit for a root"
        if self.failed:
            end = "do not publish here before what failed is mended"
        return f"{', '.join(counts)}: {end}"
