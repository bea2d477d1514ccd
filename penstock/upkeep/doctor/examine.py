"""Examine a store: check its settings, then run probes."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from os import PathLike
from typing import Any

import loader
from loader.errors import (
    Corrupt,
    Forbidden,
    InvalidStore,
    MissingDependency,
    StoreError,
    Transient,
)
from loader.native import KIND
from loader.storage import Store, is_local, open_store
from loader.storage.key_value import MemoryStore

from ...progress import progress
from . import store_probes
from . import target as place
from .finding import DoctorReport, Finding, fail, note, warn
from .store_probes import Folder, Scratch, creates, listing

PATIENCE = {"retry_deadline_s": 10.0}
"""Store options that give up soon if the server does not respond."""
Probe = Callable[[Scratch], Iterator[Finding]]

PROBES: dict[str, Probe] = {
    "create-only": creates,
    "read after write": store_probes.read_after_write,
    "etags": store_probes.etags,
    "ranges": store_probes.ranges,
    "checksums": store_probes.checksums,
    "copies": store_probes.copies,
}
"""Name -> probe. Probes write only below the scratch prefix."""

# Above S3's page of 1,000 keys, so that a listing has to join two pages.
MANY = 1_050
FEW = 30


def examine(
    url: str | PathLike[str] | None, options: Mapping[str, Any] | None = None, *, quick: bool = False
) -> DoctorReport:
    """Examine a store: read its settings, and run probes below a temporary prefix.

    A probe that the store rejects is a finding.

    url, options: as for `loader.Root`. quick: list at most one page of keys.

    Raises: InvalidStore if the URL or an option is not accepted.
    """
    store_options = dict(options or {})
    store = loader.Root(url, options=store_options).store
    if _remote(store):
        # The caller's options win over the short patience.
        store = open_store(store.url, PATIENCE | store_options)
    examination = Examination(store)
    try:
        examination.run(store_options, quick=quick)
    except Useless:
        pass  # the last finding has the reason
    finally:
        store.close()
    return DoctorReport(
        url=store.url,
        findings=examination.findings,
        native=KIND,
    )


def _remote(store: Store) -> bool:
    return not is_local(store) and not isinstance(store, MemoryStore)


class Useless(Exception):
    """Raised if the last finding makes further probes useless."""


class Examination:
    """The examination of one store, with its findings so far."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.scratch = Scratch(store)
        self.findings: list[Finding] = []
        self._answers = True

    def run(self, options: Mapping[str, Any], *, quick: bool) -> None:
        """Check settings, then run probes. Raises: Useless."""
        self._collect("clock", place.clock(self.store.url, options))
        try:
            self._collect("root", place.root(self.store), needed=True)
        finally:  # settings may explain an unreadable root, if the store responds at all
            if self._answers:
                self._collect("settings", place.settings(self.store.url, options))
        folder = None
        if is_local(self.store):
            folder = self._folder()
        try:
            if folder is not None:
                self._collect("disk", place.disk(folder.disk))
            self._collect("writing", store_probes.writing(self.scratch), needed=True)
            listed = partial(listing, many=FEW if quick else MANY)
            probes: list[tuple[str, Probe]] = [*PROBES.items(), ("listing", listed)]
            for name, probe in progress(probes, "probes"):
                self._collect(name, probe(self.scratch))
        finally:
            self._remove()
            if folder is not None:
                folder.remove()

    def _collect(self, name: str, findings: Iterator[Finding], *, needed: bool = False) -> None:
        try:
            for finding in findings:
                self.findings.append(finding)
            return
        except MissingDependency as error:
            self.findings.append(note(name, str(error)))
        except Forbidden as error:
            self.findings.append(
                fail(name, str(error), "give credentials that may list, read, write and delete there")
            )
        except (StoreError, Corrupt, OSError) as error:
            # A server that does not respond would let each question about settings wait as long.
            self._answers = self._answers and not isinstance(error, InvalidStore | Transient)
            self.findings.append(fail(name, f"{type(error).__name__}: {error}", ""))
        if needed:
            raise Useless

    def _folder(self) -> Folder:
        try:
            return Folder(self.store.url, self.scratch.prefix)
        except OSError as error:
            do = "check owner and mode of the folder, and whether its file system is mounted read-only"
            self.findings.append(fail("writing", f"{self.store.url}: {error.strerror or error}", do))
            raise Useless from None

    def _remove(self) -> None:
        before = len(self.findings)
        written = any(one.check == "writing" and one.level == "ok" for one in self.findings)
        self._collect("scratch", _remove_scratch(self.scratch))
        # Nothing was written, so a failed deletion only repeats the failure to write.
        if not written:
            del self.findings[before:]


def _remove_scratch(scratch: Scratch) -> Iterator[Finding]:
    scratch.remove()
    if listed := [info.key for info in scratch.store.list(scratch.prefix)]:
        yield warn(
            "scratch",
            f"{len(listed)} objects of this examination are still listed",
            f"delete {scratch.prefix}",
        )
