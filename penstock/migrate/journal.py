"""What an unfinished migration has copied, in the target: JSON lines in objects that are created once.

    migrations/<run>-<k>.jsonl    {"path", "nbytes", "sha256"}, a line per object that is there

A run that is killed leaves them, the next one leaves out what they name, and they go once the log has been copied.
"""

import json
import secrets

from loader.storage import Store

from .transfer import Copied

FOLDER = "migrations/"
LINES = 64
"""Of one object; what a killed run had copied and not noted is found by its size."""


class Journal:
    """Used by one thread."""

    def __init__(self, target: Store) -> None:
        self._target, self._run, self._count = target, secrets.token_hex(8), 0
        self._lines: list[str] = []
        self._keys = [info.key for info in target.list(FOLDER)]

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier run was not finished."""
        return bool(self._keys)

    def begin(self) -> None:
        """From now on a killed run is seen to be one."""
        self._put(b"")

    def done(self) -> set[str]:
        """The paths that earlier runs have copied. One request for each 64; 100 bytes of memory for each path."""
        lines = (line for key in self._keys for line in self._target.get(key).data.splitlines())
        return {json.loads(line)["path"] for line in lines}

    def add(self, copied: Copied) -> None:
        line = {"path": copied.path, "nbytes": copied.nbytes, "sha256": copied.sha256}
        self._lines.append(json.dumps(line) + "\n")
        if len(self._lines) >= LINES:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            self._put("".join(self._lines).encode())
            self._lines = []

    def finish(self) -> None:
        """The mirror has all that was asked for."""
        self._target.delete_many(self._keys)

    def _put(self, data: bytes) -> None:
        key = f"{FOLDER}{self._run}-{self._count:06d}.jsonl"
        self._target.put_if_absent(key, data)
        self._keys.append(key)
        self._count += 1
