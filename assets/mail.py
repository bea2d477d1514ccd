"""What a feed's letters name, asked of the store itself and let wait for a batch like what is listed."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from loader.errors import (
    Forbidden,
    ForkedStore,
    InvalidStore,
    ObjectNotFound,
    StoreError,
    Throttled,
    Transient,
)
from loader.storage import ObjectInfo, Store

from .feeds import Box, Letter, set_aside
from .notices import relative_key
from .step import Work
from .waiting import Progress

_AT_ONCE = 16  # requests
_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Mail:
    """Letters that a tick has read. uris: what each names; open: names of letters that are not read to their end."""

    box: Box
    letters: list[Letter] = field(default_factory=list)
    uris: dict[str, list[str]] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)

    def settle(self, progress: Progress) -> list[str]:
        """Letters of which nothing waits any more; the progress is told of the others."""
        done = []
        for one in self.letters:
            if one.name in self.open:
                continue
            progress.read.pop(one.name, None)
            if any(uri in progress.waiting for uri in self.uris[one.name]):
                progress.held.append(one.name)
            else:
                done.append(one.name)
        return done

    def take_away(self, done: Sequence[str], wait_s: float) -> None:
        """Remove those letters. What they named is in manifests by now. wait_s: how long the others may wait."""
        gone = set(done)
        self.box.hold(
            [one.name for one in self.letters if one.name not in gone and one.name not in self.open], wait_s
        )
        self.box.remove(done)


def read_mail(work: Work, box: Box) -> Mail:
    """Read letters, and let what they name wait. One HEAD per object, at most `max_notices` of them.

    Raises: StoreError when the box, or the place of the objects, does not answer.
    """
    mail, progress = Mail(box=box), work.progress
    read: dict[str, int] = {}
    refused: list[str] = []
    if not (room := work.room()):
        return mail
    left = min(room, work.budget.max_notices)
    keys: dict[str, None] = {}  # each once, in their order
    place = work.place.url.rstrip("/")
    for one in box.letters(left, frozenset(progress.held)):
        mail.letters.append(one)
        mail.uris[one.name] = []
        if one.unreadable:
            set_aside(work.dataset.store, work.dataset.name, work.source.name, one, box.url)
            where = "a message" if box.url.startswith("sqs://") else f"{box.url}/{one.name}"
            work.step.set_aside += [f"{where}, line {line}: {why}" for line, _, why in one.unreadable]
        begin = min(progress.read.get(one.name, 0), len(one.notices))
        end = min(len(one.notices), begin + left)
        for position, notice in enumerate(one.notices):
            key = relative_key(notice, work.place.url)
            if key is not None:
                mail.uris[one.name].append(f"{place}/{key}")
            if begin <= position < end and key is None:
                refused.append("elsewhere")
            elif begin <= position < end and key is not None:
                keys[key] = None
        refused += ["unreadable_notice"] * len(one.unreadable) if begin == 0 else []
        left -= end - begin
        if end < len(one.notices):
            mail.open.add(one.name)
            if not box.url.startswith("sqs://"):
                read[one.name] = end
    _take_in(work, list(keys), room)
    # Not before: where the place does not answer, nothing of these letters has been read.
    progress.read |= read
    for reason in refused:
        progress.refused(reason)
    return mail


def _take_in(work: Work, keys: Sequence[str], room: int) -> None:
    why, wanted = work.source.sieve(), []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for found in pool.map(lambda key: _now(work.place, key), keys):
            reason = why(found) if isinstance(found, ObjectInfo) else found
            if reason or isinstance(found, str):
                work.progress.refused(reason)
            else:
                wanted.append(found)
    work.admit(wanted, room)


def _now(place: Store, key: str) -> ObjectInfo | str:
    """What the store has at the key now, or why there is nothing. Raises: the errors that are of all keys."""
    try:
        return place.head(key)
    except ObjectNotFound:
        return "gone"
    except Forbidden:
        return "forbidden"
    except InvalidStore:
        return "not_media"
    except (Throttled, Transient, ForkedStore):
        raise
    except (
        StoreError
    ) as error:  # of this key, such as links that lead in a circle: reconcile looks at it again
        _log.warning("a notice names %s/%s, which cannot be looked at: %s", place.url, key, error)
        return "unanswered"
