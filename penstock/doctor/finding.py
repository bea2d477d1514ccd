"""What the doctor says: findings of four levels, and the report that holds them."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .advice import WIDTH, Advice
from .speed import Speed, table

Level = Literal["ok", "note", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at. note: a fact, or what nobody could be asked.

    warn: it will cost something one day; fail: a root does not belong here as it is. do: what to do about it.
    """

    check: str
    level: Level
    what: str
    do: str = ""

    def to_text(self) -> str:
        """'fail  ranges   what ...', and below it what to do."""
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
    """As it should be."""
    return Finding(check=check, level="ok", what=what)


def note(check: str, what: str, do: str = "") -> Finding:
    """Neither good nor bad."""
    return Finding(check=check, level="note", what=what, do=do)


def warn(check: str, what: str, do: str) -> Finding:
    """It will cost something one day."""
    return Finding(check=check, level="warn", what=what, do=do)


def fail(check: str, what: str, do: str) -> Finding:
    """Return a root does not belong here as it is."""
    return Finding(check=check, level="fail", what=what, do=do)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything about one store. advice: None where no speed was measured."""

    url: str
    findings: Sequence[Finding]
    speeds: Sequence[Speed]
    advice: Advice | None

    @property
    def failed(self) -> bool:
        """Whether anything is wrong enough to keep a root elsewhere."""
        return any(finding.level == "fail" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "failed": self.failed}

    def to_text(self) -> str:
        """Return a line per finding, the table of speeds, what to set, and the verdict."""
        lines = [f"penstock doctor {self.url}", "", *(finding.to_text() for finding in self.findings)]
        if self.speeds:
            lines += ["", *table(self.speeds)]
        if self.advice:
            lines += ["", *self.advice.to_lines(self.url)]
        return "\n".join([*lines, "", self._verdict()])

    def _verdict(self) -> str:
        levels = [finding.level for finding in self.findings]
        counted = ", ".join(f"{levels.count(level)} {level}" for level in ("ok", "note", "warn", "fail"))
        end = "do not publish here before what failed is mended" if self.failed else "fit for a root"
        return f"{counted}: {end}"
