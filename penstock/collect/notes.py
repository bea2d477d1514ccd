"""What a collector has seen, and for how long, on its own clock and no other.

    collect/<name>/signs.json      {"at_us", "checksum", "format", "run", "run_us", "signs": {key: [what it said,
                                   silent_us]}}; the checksum is that of a log entry
    collect/<name>/plan.parquet    what is condemned, and for how long; see `plan.py`

A name stands for a clock: a collector that runs on several machines has a name on each, and begins with nothing there.
Durations are added up from look to look; `clock.py` says how much of what lies between two counts.
"""

import logging
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from loader.dataset.entries import DAMAGED, canonical, checksum_of
from loader.errors import FormatTooNew, InvalidName, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import Store

from .clock import Moment, passed

FORMAT = 1
FOLDER = "collect/"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
logger = logging.getLogger(__name__)

Said = str
"""What a sign of life said: its counter and holder, or nothing."""


def own_name() -> str:
    """The collector of this machine."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:60].strip("-.") or "host"


def check_name(name: str) -> str:
    """Raises: InvalidName."""
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} cannot name a collector: 1 to 100 of A-Z a-z 0-9 . _ -, the first no sign"
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """Signs of life, as they were at a look. at: when it was; said: key -> (what it said, for how long it has)."""

    at: Moment | None = None
    said: Mapping[str, tuple[Said, int]] = field(default_factory=dict)

    def silent_us(self, key: str) -> int:
        """How long it has said the same; 0 for one that was not there."""
        return self.said[key][1] if key in self.said else 0

    def after(self, now: Mapping[str, Said], at: Moment, most_us: int) -> "Signs":
        """These, and what is seen now. most_us: as for `passed`."""
        step = passed(self.at, at, most_us)
        silent = {
            key: self.said[key][1] + step
            if step is not None and key in self.said and self.said[key][0] == said
            else 0
            for key, said in now.items()
        }
        return Signs(at=at, said={key: (said, silent[key]) for key, said in now.items()})


def read_signs(store: Store, name: str) -> Signs:
    """What the collector saw last; nothing when it never looked, or what it left is damaged. Raises: FormatTooNew."""
    key = f"{FOLDER}{name}/signs.json"
    try:
        body = parse_json_object(store.get(key).data)
        if body["format"] > FORMAT:
            raise FormatTooNew(
                f"{store.url}/{key} has format {body['format']}; this penstock reads up to {FORMAT}"
            )
        if body.get("checksum") != checksum_of(body):
            raise ValueError("its checksum does not hold")
        said = {str(sign): (str(what), int(silent)) for sign, (what, silent) in body["signs"].items()}
        return Signs(at=Moment.from_json(body), said=said)
    except ObjectNotFound:
        return Signs()
    except FormatTooNew:
        raise
    except DAMAGED as error:
        logger.warning("%s in %s cannot be read (%s): the collector begins again", key, store.url, error)
        return Signs()


def write_signs(store: Store, name: str, signs: Signs) -> None:
    """For the next look. Raises: StoreError."""
    said = {key: [what, silent] for key, (what, silent) in signs.said.items()}
    assert signs.at is not None
    body = {"format": FORMAT, **signs.at.to_json(), "signs": said}
    store.put(f"{FOLDER}{name}/signs.json", canonical({**body, "checksum": checksum_of(body)}))
