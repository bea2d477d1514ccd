"""Every error penstock raises on purpose, in one tree; built-in bases are in parentheses.

    PenstockError:
      StoreError:
        ObjectNotFound:       (FileNotFoundError)
        AlreadyExists:        (FileExistsError)
        Changed:              (RuntimeError)
        Forbidden:            (PermissionError)
        Throttled:            (ConnectionError)
        Transient:            (ConnectionError)
        ForkedStore:          (RuntimeError)
        InvalidStore:         (ValueError)
      Corrupt:                (ValueError)
        CorruptLog:
        CorruptCheckpoint:
        DecodeFailed:
        TooManyCorrupt:
      InvalidSample:          (ValueError)
        InvalidKey:
        InvalidField:
        DuplicateKey:
        FieldMismatch:
        FieldTooLarge:
        EmptyVersion:
        NotSupported:
      RootError:
        NotARoot:             (ValueError)
        FormatTooNew:         (ValueError)
        VersionNotFound:      (LookupError)
        SampleNotFound:       (LookupError)
        FieldNotFound:        (LookupError)
        TransactionNotFound:  (LookupError)
        TakedownNotFound:     (LookupError)
        VersionRetired:       (LookupError)
        Fenced:               (RuntimeError)
        Conflict:             (RuntimeError)
        InvalidName:          (ValueError)
        Denied:               (PermissionError)
        StageNotPublished:    (RuntimeError)
        CheckpointNotFound:   (LookupError)
        RunNotFound:          (LookupError)
        SliceNotFound:        (LookupError)
        NotIndexed:           (RuntimeError)
        NotRecorded:          (LookupError)
      InvalidPlan:            (ValueError)
        EmptyView:
        BatchTooLarge:
      PlanMismatch:           (ValueError)
      CheckpointMismatch:     (ValueError)
      InvalidRuntime:         (ValueError)
        Unpicklable:
        UnseededItems:
        InvalidSignature:     (TypeError)
      TransformFailed:        (RuntimeError)
      WorkerFailed:           (RuntimeError)
      MissingDependency:      (ImportError)
      PackageClash:           (ImportError)
      LossyExport:            (ValueError)
      InvalidWeights:         (ValueError)
      ModelFailed:            (RuntimeError)
      FeaturizerFailed:       (RuntimeError)
      EngineUnreachable:      (ConnectionError)
      InvalidCluster:         (ValueError)
      JobFailed:              (RuntimeError)
      JobCancelled:           (RuntimeError)
      CodeMismatch:           (RuntimeError)
      InvalidSpec:            (ValueError)
      RunTaken:               (RuntimeError)

A message names the fault, the given and the accepted value, the remedy, and the address of stored data. Programs read
the same facts from the fields `what`, `where`, `given` and `accepted`: a text may change.
"""

import os
from collections import abc
from typing import Self

from .redaction import redact

# Bounds of fields. Longer texts are cut. Longer and deeper lists become their repr: a list may contain itself.
MAX_CHARS = 300
MAX_ENTRIES = 20
MAX_DEPTH = 3
_FIELDS = ("what", "where", "given", "accepted")


def plain_value(value: object, depth: int = 0) -> object:
    """Return a value as fields of errors hold it: a number or truth value, a text, or a short list or tuple of these.

    Any other object becomes its repr: errors are pickled and logged. Texts lose secrets and are cut.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)  # not a subclass, such as an enum of the caller's
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return redact(str(value))[:MAX_CHARS]
    if isinstance(value, os.PathLike):
        return plain_value(os.fsdecode(value))
    if isinstance(value, list | tuple) and len(value) <= MAX_ENTRIES and depth < MAX_DEPTH:
        entries = [plain_value(entry, depth + 1) for entry in value]
        return entries if isinstance(value, list) else tuple(entries)
    return plain_value(repr(value))


class PenstockError(Exception):
    """Base of all errors that penstock raises on purpose.

    A field is None if the error does not state it. Fields hold plain values without secrets, see `plain_value`.
    """

    what: str | None = None
    """Name of the argument, field, column, key or file at fault."""
    where: str | None = None
    """Address of the fault: a location, a version, a sample or a line."""
    given: object = None
    """The offending value, or its size or type."""
    accepted: object = None
    """Accepted values, or a text that describes them."""

    def __init__(
        self,
        *args: object,
        what: object = None,
        where: object = None,
        given: object = None,
        accepted: object = None,
    ) -> None:
        super().__init__(*args)
        self._set_fields({"what": what, "where": where, "given": given, "accepted": accepted})

    def with_message(self, message: str, **fields: object) -> Self:
        """Return an error of this type with another message and the same fields, except stated ones and notes."""
        error = type(self)(message)
        vars(error).update({name: value for name, value in vars(self).items() if name != "__notes__"})
        error._set_fields(fields)
        return error

    @property
    def fields(self) -> dict[str, object]:
        """Fields that the error states, for an error of another type about the same fault."""
        return {name: value for name, value in vars(self).items() if name in _FIELDS}

    def _set_fields(self, fields: abc.Mapping[str, object]) -> None:
        for name, value in fields.items():
            if value is not None:
                setattr(self, name, plain_value(value))


class StoreError(PenstockError):
    """A store (bucket, disk, memory) could not complete a request."""


class ObjectNotFound(StoreError, FileNotFoundError):
    """The store has no object with that key."""


class AlreadyExists(StoreError, FileExistsError):
    """A create-only write found another object at its key."""


class Changed(StoreError, RuntimeError):
    """The object's ETag differs from the one pinned at the first read."""


class Forbidden(StoreError, PermissionError):
    """The credentials do not allow the request, or there are none."""


class Throttled(StoreError, ConnectionError):
    """The store throttled requests until the retry budget was spent."""


class Transient(StoreError, ConnectionError):
    """The store did not respond, or broke the connection, until the retry budget was spent."""


class ForkedStore(StoreError, RuntimeError):
    """A forked child used a store that its parent had opened; native clients hang there."""


class InvalidStore(StoreError, ValueError):
    """A URL, option or key that no backend accepts."""


class Corrupt(PenstockError, ValueError):
    """Stored bytes differ from those written; a second read returned the same bytes."""


class CorruptLog(Corrupt):
    """An entry of the root's log is damaged or missing."""


class CorruptCheckpoint(Corrupt):
    """A checkpoint lacks bytes, or has others than were written."""

    def __init__(
        self,
        message: str,
        *,
        run: str = "",
        step: int = 0,
        name: str = "",
        problem: str = "",
        **fields: object,
    ) -> None:
        super().__init__(message, **fields)
        self.run = run
        self.step = step
        self.name = name
        """Object under `parts/<step>/`; "" for the marker."""
        self.problem = problem
        """Address of the object, and what is wrong with it."""


class DecodeFailed(Corrupt):
    """A decoder rejected bytes whose checksum is correct."""


class TooManyCorrupt(Corrupt):
    """More corrupt samples than `corrupt_budget` allows; the message names the ledger that lists them."""


class InvalidSample(PenstockError, ValueError):
    """A writer got a sample that the format cannot hold."""


class InvalidKey(InvalidSample):
    """A sample key that cannot be a tar member name."""


class InvalidField(InvalidSample):
    """A field name or value that the format rejects."""


class DuplicateKey(InvalidSample):
    """Two samples of one version would share a key."""


class FieldMismatch(InvalidSample):
    """Samples of one group have different fields."""


class FieldTooLarge(InvalidSample):
    """A field too large for one range read or one decoder."""


class EmptyVersion(InvalidSample):
    """A version without samples."""


class NotSupported(InvalidSample):
    """Valid data of an unsupported type or feature; the message names the remedy."""


class RootError(PenstockError):
    """A fault of a root, its log or its names."""


class NotARoot(RootError, ValueError):
    """The location exists and is not a penstock root."""


class FormatTooNew(RootError, ValueError):
    """The data was written in a newer format than this package reads."""


class VersionNotFound(RootError, LookupError):
    """No such dataset, version, tag, alias or id. dataset: the one without that version; "" if it does not exist."""

    def __init__(self, *args: object, dataset: str | None = None, **fields: object) -> None:
        super().__init__(*args, **fields)
        self.dataset = dataset


class SampleNotFound(RootError, LookupError):
    """The version has no live sample with this key, or no exclusion of that sample."""


class FieldNotFound(RootError, LookupError):
    """A field that the version lacks, or lacks in some parts."""


class TransactionNotFound(RootError, LookupError):
    """The root's log lacks the transaction."""


class TakedownNotFound(RootError, LookupError):
    """The root's log lacks a takedown with this number."""


class VersionRetired(RootError, LookupError):
    """The version was retired, for the reason in the message. dataset: the version's dataset."""

    def __init__(self, *args: object, dataset: str | None = None, **fields: object) -> None:
        super().__init__(*args, **fields)
        self.dataset = dataset


class Fenced(RootError, RuntimeError):
    """Another process aborted the transaction; begin a new one."""


class Conflict(RootError, RuntimeError):
    """Two writers changed the same thing; the second was rejected, and no change was lost."""


class InvalidName(RootError, ValueError):
    """A dataset, tag or alias name that is reserved or malformed."""


class Denied(RootError, PermissionError):
    """The version would contain a sample that a takedown covers."""


class StageNotPublished(RootError, RuntimeError):
    """A lifecycle stage whose current record for a partition is missing or failed its check."""


class CheckpointNotFound(RootError, LookupError):
    """No complete checkpoint exists for that step, or there is no such run."""


class RunNotFound(RootError, LookupError):
    """The root has no record of that run; the message lists the recorded ones."""


class SliceNotFound(RootError, LookupError):
    """The dataset has no slice of that name or number, or it was removed."""


class NotIndexed(RootError, RuntimeError):
    """A search would compare too many samples; the message names `penstock index`, its seconds and bytes."""


class NotRecorded(RootError, LookupError):
    """The run did not record this; the message lists the arguments that the next run has to pass."""


class InvalidPlan(PenstockError, ValueError):
    """A plan that cannot be made from these arguments."""


class EmptyView(InvalidPlan):
    """A source without samples."""


class BatchTooLarge(InvalidPlan):
    """A source smaller than its share of one batch."""


class PlanMismatch(PenstockError, ValueError):
    """A saved state whose past differs from this plan's; the message names the fields."""


class CheckpointMismatch(PenstockError, ValueError):
    """The checkpoint and the state have different entries."""


class InvalidRuntime(PenstockError, ValueError):
    """Rank, world size, workers or another runtime argument out of range."""


class Unpicklable(InvalidRuntime):
    """An object that a worker process cannot receive."""


class UnseededItems(InvalidRuntime):
    """An item of a dataset differs each time that it is made, because it draws from a generator of its own."""


class InvalidSignature(InvalidRuntime, TypeError):
    """A decoder or transform that does not accept the arguments with which penstock calls it."""


class TransformFailed(PenstockError, RuntimeError):
    """The user's transform raised an error or returned nothing; the message has the sample's address."""


class WorkerFailed(PenstockError, RuntimeError):
    """A worker process died twice during one step, raised an unsendable error, or lacks code, rights or resources."""


class MissingDependency(PenstockError, ImportError):
    """An optional package is missing; the message has the pip line."""


class PackageClash(PenstockError, ImportError):
    """Another distribution installs the package `penstock` into the same environment."""


class LossyExport(PenstockError, ValueError):
    """A format cannot hold everything in a version; the message lists each lost field and column, with the reason."""


class InvalidWeights(PenstockError, ValueError):
    """Model weights that are missing, differ from the declared ones, or do not fit the model."""


class ModelFailed(PenstockError, RuntimeError):
    """A model's device is missing, it does not fit into memory, or its results are not repeatable."""


class FeaturizerFailed(PenstockError, RuntimeError):
    """A featurizer's code failed, which is not a verdict on a sample; the message has featurizer, sample and error."""


class EngineUnreachable(PenstockError, ConnectionError):
    """A compute engine's controller did not respond. Its jobs continue, in an unknown state."""


class InvalidCluster(PenstockError, ValueError):
    """An invalid description of a compute cluster, or a cluster that rejects the job; the message has the reason."""


class JobFailed(PenstockError, RuntimeError):
    """A job that a retry would not complete; the message has the blocks, the nodes and their last output."""


class JobCancelled(PenstockError, RuntimeError):
    """Another user ended the job while this process waited for it."""


class CodeMismatch(PenstockError, RuntimeError):
    """A node's source tree or minor Python release differs from the job's."""


class InvalidSpec(PenstockError, ValueError):
    """An invalid spec of a dataset, or file of a training run; the message names the key and what is accepted."""


class RunTaken(PenstockError, RuntimeError):
    """A run of that name was started from another file: choose another name."""
