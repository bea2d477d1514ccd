"""Read the output of a run for `penstock train logs`: from its first failure on, or all of it."""

from collections.abc import Iterator
from typing import NamedTuple

from loader.errors import InvalidRuntime

from ...compute.locked_processes import LOG_BYTES
from ..run_folder import RunFolder
from .failures import MOST_BYTES, failure_line
from .launcher import Launcher
from .run_end import filter_lines
from .run_log import MissingLog, rank_lines


class ShownLog(NamedTuple):
    """Part of a run's output."""

    note: str
    """Words for the lines that are left out, and how to see them; "" without a failure."""
    text: str
    """About 64 KiB at most."""


def attempt_start(folder: RunFolder, attempt: int | None) -> int | None:
    """Return the restarts before a start by its number; None for None. Raises: InvalidRuntime."""
    if attempt is None:
        return None
    attempts = folder.attempts()
    if attempt not in attempts:
        numbers = map(str, attempts)
        accepted = ", ".join(numbers) or "none yet"
        raise InvalidRuntime(
            f"--attempt {attempt}; accepted: {accepted}, the starts of {folder.run} in which ranks came up (penstock "
            "train show)"
        )
    start: int = attempts[attempt]["restarts"]
    newest = attempt
    for number, facts in attempts.items():
        if facts["restarts"] == start:
            newest = number
    if newest != attempt:  # of another JobSet of the run
        raise InvalidRuntime(
            f"--attempt {attempt}: attempt {newest} has {start} restarts before it, too, and only its output is there"
        )
    return start


def read_log(launcher: Launcher, run: str, rank: int | None = None, start: int | None = None) -> ShownLog:
    """Return a start's output from its first failure on; the last 64 KiB of the log if it has none.

    rank: only this rank's lines. start: restarts before it; None for the newest. Raises: as `Launcher.logs`.
    """
    text, is_cut = _start_lines(launcher, run, rank, start)
    number = failure_line(text)
    if number is None:
        last_lines = launcher.logs(run, rank, start)
        return ShownLog("", last_lines)
    lines = text.splitlines(keepends=True)
    rest = lines[number:]
    from_failure = "".join(rest)
    shown, n_left_out = _ends(from_failure)
    which = "this start"
    if start is None:
        which = "the newest start"
    left_out = _words(number, is_cut, n_left_out)
    if not left_out:
        return ShownLog("", shown)
    note = f"penstock: the output of {which} from its first failure on"
    note += f", without {left_out}"
    note += "; --all prints them"
    return ShownLog(note, shown)


def _words(n_lines: int, is_cut: bool, n_characters: int) -> str:
    """Return what was left out before a failure and after it, in words; "" for nothing."""
    words = []
    lines = "lines"
    if n_lines == 1:
        lines = "line"
    if is_cut:
        words.append(f"more than {n_lines:,} {lines} before it")
    elif n_lines:
        words.append(f"{n_lines:,} {lines} before it")
    if n_characters:
        words.append(f"{n_characters:,} characters in its middle")
    return " and ".join(words)


def _start_lines(launcher: Launcher, run: str, rank: int | None, start: int | None) -> tuple[str, bool]:
    """Return the lines of a start, or of a rank in it, and whether earlier ones are left out."""
    bounds = launcher.log_range(run, start)
    if bounds is None:
        text = launcher.logs(run, rank, start)
        return text, False
    text, is_cut = _start_text(launcher, run, *bounds)
    label = _label(launcher, run, rank)
    if label is not None:
        text = rank_lines(text, label)
    return text, is_cut


def _label(launcher: Launcher, run: str, rank: int | None) -> int | None:
    """Return the rank whose lines are chosen by their name; None for all lines."""
    if rank is None:
        return None
    return launcher.label(run, rank)


def _start_text(launcher: Launcher, run: str, begin: int, end: int | None) -> tuple[str, bool]:
    """Return at most the last 16 MiB of a part of a log, and whether it is longer."""
    if end is None:
        last = launcher.log_part(run, None)
        end = last.end
    earliest = end - MOST_BYTES
    first = max(begin, earliest)
    parts = list[str]()
    at = first
    while at < end:
        part = launcher.log_part(run, at, end)
        if not part.text:  # the file has become shorter
            break
        parts.append(part.text)
        at = part.end
    text = "".join(parts)
    is_cut = first > begin
    return text, is_cut


def _ends(text: str) -> tuple[str, int]:
    """Return a text without the middle if it is longer than 64 KiB, and how many characters that has."""
    length = len(text)
    if length <= LOG_BYTES:
        return text, 0
    half = LOG_BYTES // 2
    first_half = text[:half]
    second_half = text[-half:]
    head, _, _ = first_half.rpartition("\n")
    _, _, tail = second_half.partition("\n")
    if not head:  # one long line
        head = first_half
    if not tail:
        tail = second_half
    n_left_out = length
    n_left_out -= len(head)
    n_left_out -= len(tail)
    shown = f"{head}\n...\n{tail}"
    return shown, n_left_out


def whole_log(
    launcher: Launcher, run: str, rank: int | None = None, start: int | None = None
) -> Iterator[str]:
    """Yield all that a run has written, or a start. rank: only this rank's lines. Raises: as `Launcher.logs`."""
    bounds = launcher.log_range(run, start)
    if bounds is None:
        text = launcher.logs(run, rank, start)
        yield from filter_lines(text, None)
        return
    begin, end = bounds
    if start is None:  # all starts, not only the newest, which `bounds` has
        begin = 0
        end = None
    label = _label(launcher, run, rank)
    rest = ""
    part = launcher.log_part(run, begin, end)
    while part.text:
        text = rest + part.text
        lines, _, rest = text.rpartition("\n")
        yield from filter_lines(lines, label)
        part = launcher.log_part(run, part.end, end)
    yield from filter_lines(rest, label)


def check_folder(launcher: Launcher, run: str) -> MissingLog | None:
    """Return what is missing of a run's output. Raises: InvalidRuntime if it is the folder of a cluster's outputs."""
    missing = launcher.missing_log(run)
    if missing is None:
        return None
    if missing.is_folder:
        words = f"the output of {run} cannot be read: {missing.words}"
        words += "; create it, or correct its path"
        raise InvalidRuntime(words)
    return missing


def empty_log_words(launcher: Launcher, run: str) -> str:
    """Return why a run without output has none, in words. Raises: InvalidRuntime if output should be there."""
    missing = check_folder(launcher, run)
    bounds = launcher.log_range(run)
    if missing is None and bounds is not None:  # there is a file, and it is empty
        return "nothing was written"
    status = launcher.status(run)
    if status.state == "waiting":
        reason = status.reason or status.place
        return f"{run} has written nothing yet: it waits ({reason})"
    if status.state == "unknown":
        name = launcher.name()
        words = f"{run} has no output, and {name} does not know it"
        words += ": it was never started there"
        if missing is not None:
            words += f"; {missing.words}"
        raise InvalidRuntime(words)
    if missing is None:  # the output is in no single file, such as the logs of pods
        return "nothing was written"
    has_ended = status.state == "ended"
    if has_ended and missing.is_absent:
        # It was cancelled while it waited.
        words = "nothing was written"
        words += f": {missing.words}"
        return words
    words = f"{run} is {status.state}, and its output cannot be read"
    words += f": {missing.words}"
    raise InvalidRuntime(words)
