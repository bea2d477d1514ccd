"""Check the log for consistency: every entry, the hash chain, the rules, and the hints."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from loader.dataset.log.append import read_tail
from loader.dataset.log.entries import Entry, entry_key, find_edited, gaps, missing_error
from loader.dataset.log.fold import fold, fold_all
from loader.dataset.log.snapshots import HINT_EVERY, hint_key, load_state, state_checksum
from loader.dataset.log.state import State
from loader.errors import Corrupt, FormatTooNew, ObjectNotFound
from loader.storage import Store, is_there

from ..repair import misread
from .shard import Problem


def check_log(store: Store, numbers: set[int], hints: set[int]) -> tuple[State, list[Problem]]:
    """Return the state after the log's longest undamaged prefix, and the problems. Reads every entry and hint.

    No later entry has the last one's hash: an edit of it that keeps canonical JSON and the rules shows only in its
    commit's manifest, if at all.

    numbers, hints: numbers of the listed entries and hints.
    """
    state = State()
    good = True
    links = list[Entry]()
    problems = list[Problem]()
    entries = _check_links(read_tail(store, 0, prev=""), links, problems)
    vouched = set[int]()
    while good and (chunk := list(islice(entries, HINT_EVERY))):
        vouched.update(entry.n - 1 for entry in chunk if entry.state)
        for piece in _pieces(chunk, hints):
            problems.extend(_says_state(piece[0], state))
            try:
                state = fold_all(state, piece)
            except Corrupt:
                state, problem = _last_good(state, piece)
                problems.append(problem)
                good = False
                break
            if state.n in hints:
                problems.extend(_hint(store, state))
    for _ in entries:
        pass  # checks only the chain
    if names := find_edited(links):
        # The entry after an edited one breaks the chain, but the edited one has the problem.
        problems = [one for one in problems if "was written after an entry with sha256" not in one.what]
        problems += [_chain_problem(store, links, n) for n in names]
    read = len(links)
    if lost := list(_gap_problems(store, read, numbers)):
        # The read ended at the first lost entry, or at an invalid one.
        problems = [one for one in problems if one.address != lost[0].address] + lost
    last = max(read, *numbers, 0)
    for n in sorted(hints):
        if n % HINT_EVERY and n < last and n not in vouched:
            problems.append(Problem(address=hint_key(n), what=f"no hint follows entry {n}; delete it"))
        elif n > last:
            what = (
                f"there is no log entry {n} that it could follow: {entry_key(last + 1)} and later ones are missing. "
                "Restore them from a mirror, or delete the hint where it came from another log"
            )
            problems.append(Problem(address=hint_key(n), what=what))
    return state, problems


def _pieces(entries: list[Entry], hints: set[int]) -> Iterator[list[Entry]]:
    piece: list[Entry] = []
    for entry in entries:
        # Cut where a state or a hint can be compared; entries in between are folded together.
        if piece and (entry.state or piece[-1].n in hints):
            yield piece
            piece = []
        piece.append(entry)
    yield piece


def _says_state(entry: Entry, state: State) -> Iterator[Problem]:
    if entry.state and entry.state != (actual := state_checksum(state)):
        what = (
            f"it states {entry.state}, and the entries before it come to {actual}; a hint there is not used"
        )
        yield Problem(address=entry_key(entry.n), what=what)


def _chain_problem(store: Store, links: list[Entry], n: int) -> Problem:
    if n < len(links) and (how := misread(store, n, links[n].prev)):
        what = (
            f"it was written after {entry_key(n)} with {how}: one of the two was damaged on its way or where it is "
            "stored; penstock repair finds out which, and repairs it"
        )
        return Problem(address=entry_key(n + 1), what=what)
    return Problem(
        address=entry_key(n),
        what=f"its bytes have sha256 {links[n - 1].sha256}, not what entry {n + 1} was written after: it was "
        "edited; restore it from a mirror (penstock repair --mirror)",
    )


def _gap_problems(store: Store, read: int, numbers: set[int]) -> Iterator[Problem]:
    """Yield a problem for each gap in the log. read: last entry read. numbers: entries that the listing has."""
    later = sorted(n for n in numbers if n > read)
    for first, last in gaps([read, *later]):
        if not is_there(store, entry_key(first)):  # if it exists, it was created after the listing
            what = f"{missing_error(first, last)}. Later entries, and the versions that they name, were not checked"
            yield Problem(address=entry_key(first), what=what)


def _check_links(entries: Iterator[Entry], links: list[Entry], problems: list[Problem]) -> Iterator[Entry]:
    try:
        for entry in entries:
            # Without bodies: a log may have a million entries, and the chain needs only hashes.
            links.append(replace(entry, body={}, data=b""))
            yield entry
    except FormatTooNew:
        raise
    except Corrupt as error:
        problems.append(Problem(address=entry_key(len(links) + 1), what=str(error)))


def _last_good(state: State, entries: list[Entry]) -> tuple[State, Problem]:
    for entry in entries:
        try:
            state = fold(state, entry)
        except Corrupt as error:
            return state, Problem(address=entry_key(entry.n), what=str(error))
    raise AssertionError("fold and fold_all disagree")


def _hint(store: Store, state: State) -> Iterator[Problem]:
    # It is from a newer penstock, and readers skip it too; or a collector deleted it since the listing.
    with suppress(FormatTooNew, ObjectNotFound):
        try:
            same = load_state(store.get(hint_key(state.n)).data) == state
        except ValueError as error:
            yield Problem(address=hint_key(state.n), what=f"{error}; delete it, it only saves reads")
            return
        if not same:
            yield Problem(
                address=hint_key(state.n),
                what=f"it is not what the entries up to {state.n} come to; delete it, it only saves reads",
            )
