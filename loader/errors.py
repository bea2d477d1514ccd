"""Every error penstock raises on purpose, in one tree.

    PenstockError
      StoreError:                    what a bucket or disk answered
        ObjectNotFound:              (FileNotFoundError)   no object at that key
        AlreadyExists:               (FileExistsError)     a create-only write met another object
        Changed:                     (RuntimeError)        the object is not the one first read
        Forbidden:                   (PermissionError)     credentials lack the right
        Throttled:                   (ConnectionError)     the store asked us to slow down, past our budget
        Transient:                   (ConnectionError)     the store did not answer, past our budget
        ForkedStore:                 (RuntimeError)        a forked child used its parent's store
        InvalidStore:                (ValueError)          URL, option or key that no store accepts
      Corrupt:                       (ValueError)          bytes that are not what was written
        CorruptLog:                  the root's log, without which nothing of it is read
        DecodeFailed:                a decoder refused bytes whose checksum is right
        TooManyCorrupt:              more samples were substituted than the budget allows
      InvalidSample:                 (ValueError)          what a writer was handed
        InvalidKey InvalidField DuplicateKey FieldMismatch FieldTooLarge EmptyVersion
        NotSupported:                healthy data of a kind that is not taken here
      RootError:                     the root and its history
        NotARoot:                    (ValueError)
        FormatTooNew:                (ValueError)
        VersionNotFound:             (LookupError)
        SampleNotFound:              (LookupError)         no live sample has this key
        FieldNotFound:               (LookupError)
        TransactionNotFound:         (LookupError)
        TakedownNotFound:            (LookupError)
        VersionRetired:              (LookupError)
        Fenced:                      (RuntimeError)        the transaction was aborted
        Conflict:                    (RuntimeError)        two changes of one part, or of one ref
        InvalidName:                 (ValueError)          a dataset, tag or alias name
        Denied:                      (PermissionError)     a sample that was taken down
        StageNotPublished:           (RuntimeError)        a stage that failed its check, or never ran
        CheckpointNotFound:          (LookupError)         no such step of a run
        RunNotFound:                 (LookupError)         no run of that name left a trail
        NotRecorded:                 (LookupError)         a fact that the run did not leave
      InvalidPlan:                   (ValueError)          a plan that cannot be made
        EmptyView BatchTooLarge
      PlanMismatch:                  (ValueError)          a state that belongs to another plan
      CheckpointMismatch:            (ValueError)          a checkpoint that does not fit the state to load into
      InvalidRuntime:                (ValueError)          rank, world size, workers ...
        Unpicklable:                 a transform that a worker process cannot receive
      TransformFailed:               (RuntimeError)        the user's transform raised, or returned nothing
      WorkerFailed:                  (RuntimeError)        a worker process died, or cannot say what went wrong
      MissingDependency:             (ImportError)         an optional package is not installed
      PackageClash:                  (ImportError)         another project's package of the same name is installed too
      LossyExport:                   (ValueError)          an export into a format that cannot hold all of a version
      InvalidWeights:                (ValueError)          a model's weights: missing, others than stated, not its own
      ModelFailed:                   (RuntimeError)        a model that cannot run here, or not to the same bits twice
      EngineUnreachable:             (ConnectionError)     a cluster's controller gave no answer; its jobs go on
      InvalidCluster:                (ValueError)          a cluster that is described wrongly, or refuses the job
      JobFailed:                     (RuntimeError)        blocks of a job on a cluster that never come to an end
      JobCancelled:                  (RuntimeError)        somebody ended a job on a cluster
      CodeMismatch:                  (RuntimeError)        a node with another source tree or Python than the job's
      InvalidSpec:                   (ValueError)          the file of a training run that cannot be started
      RunTaken:                      (RuntimeError)        a run of that name was started from another file

A message says what was wrong, what was got, what is accepted and what to do next; an error about stored
data carries the full address (`name@12/part-00042 media[1048576:1310720] sample 'ep_31/0120'`).
"""


class PenstockError(Exception):
    """The root of the tree: `except loader.errors.PenstockError` catches everything raised on purpose."""


class StoreError(PenstockError):
    """A store (bucket, disk, memory) could not do what was asked."""


class ObjectNotFound(StoreError, FileNotFoundError):
    """There is no object at that key."""


class AlreadyExists(StoreError, FileExistsError):
    """A create-only write found another object at its key."""


class Changed(StoreError, RuntimeError):
    """The object is not the one whose ETag was pinned at the first read."""


class Forbidden(StoreError, PermissionError):
    """The credentials do not allow this, or there are none."""


class Throttled(StoreError, ConnectionError):
    """The store kept asking us to slow down until the retry budget was spent."""


class Transient(StoreError, ConnectionError):
    """The store did not answer, or broke off, until the retry budget was spent."""


class ForkedStore(StoreError, RuntimeError):
    """A forked child used a store that its parent had opened; native clients hang there."""


class InvalidStore(StoreError, ValueError):
    """A URL, option or key that no backend accepts."""


class Corrupt(PenstockError, ValueError):
    """Stored bytes are not the bytes that were written; a re-fetch from the origin gave the same."""


class CorruptLog(Corrupt):
    """An entry of the root's log is damaged or missing."""


class DecodeFailed(Corrupt):
    """A decoder refused bytes whose checksum is right."""


class TooManyCorrupt(Corrupt):
    """More corrupt samples than `corrupt_budget` allows; the ledger that lists them is named."""


class InvalidSample(PenstockError, ValueError):
    """A writer was handed something the format does not hold."""


class InvalidKey(InvalidSample):
    """A sample key that cannot be a tar member name."""


class InvalidField(InvalidSample):
    """A field name or value that the format refuses."""


class DuplicateKey(InvalidSample):
    """Two samples of one version would share a key."""


class FieldMismatch(InvalidSample):
    """Samples of one group do not have the same fields."""


class FieldTooLarge(InvalidSample):
    """A field above the size that one range read and one decoder can serve."""


class EmptyVersion(InvalidSample):
    """A version without samples."""


class NotSupported(InvalidSample):
    """Healthy data of a type or with a feature that is not taken here; the message says what to do instead."""


class RootError(PenstockError):
    """The root, its log or its names."""


class NotARoot(RootError, ValueError):
    """The place exists and is not a penstock root."""


class FormatTooNew(RootError, ValueError):
    """The root was written by a newer format than this package reads."""


class VersionNotFound(RootError, LookupError):
    """No such dataset, version, tag, alias or id.

    dataset: the one that is there and lacks it, "" where that is missing too, None where it is none of a dataset's.
    """

    def __init__(self, *args: object, dataset: str | None = None) -> None:
        super().__init__(*args)
        self.dataset = dataset


class SampleNotFound(RootError, LookupError):
    """No live sample of the version has this key, or no exclusion of it stands."""


class FieldNotFound(RootError, LookupError):
    """A field that the version does not have, or does not have for every part."""


class TransactionNotFound(RootError, LookupError):
    """A transaction that the root's log never began."""


class TakedownNotFound(RootError, LookupError):
    """The root's log has no takedown of this number."""


class VersionRetired(RootError, LookupError):
    """The version was retired; its reason is in the message. dataset: of the version."""

    def __init__(self, *args: object, dataset: str | None = None) -> None:
        super().__init__(*args)
        self.dataset = dataset


class Fenced(RootError, RuntimeError):
    """The transaction was aborted by somebody else; begin a new one."""


class Conflict(RootError, RuntimeError):
    """Two writers changed the same thing; neither change was lost, the second was refused."""


class InvalidName(RootError, ValueError):
    """A dataset, tag or alias name that is reserved or malformed."""


class Denied(RootError, PermissionError):
    """The version would contain a sample that was taken down."""


class StageNotPublished(RootError, RuntimeError):
    """A lifecycle stage whose current record for a partition is missing, or failed its check."""


class CheckpointNotFound(RootError, LookupError):
    """No complete checkpoint of that step, or no such run."""


class RunNotFound(RootError, LookupError):
    """No run of that name is on record; those that are there are named."""


class NotRecorded(RootError, LookupError):
    """A run left something, but not what was asked for; the message says what the next run has to pass."""


class InvalidPlan(PenstockError, ValueError):
    """A plan that cannot be made from these arguments."""


class EmptyView(InvalidPlan):
    """A source without samples."""


class BatchTooLarge(InvalidPlan):
    """A source smaller than its share of one batch."""


class PlanMismatch(PenstockError, ValueError):
    """A saved state whose past differs from this plan's; the differing fields are named."""


class CheckpointMismatch(PenstockError, ValueError):
    """A checkpoint with entries that the state to load into does not have, or the other way round."""


class InvalidRuntime(PenstockError, ValueError):
    """Rank, world size, workers or another runtime argument out of range."""


class Unpicklable(InvalidRuntime):
    """An object that a worker process cannot receive."""


class TransformFailed(PenstockError, RuntimeError):
    """The user's transform raised or returned nothing; the sample's address is in the message."""


class WorkerFailed(PenstockError, RuntimeError):
    """A worker process died twice over one step, or raised an error that could not be sent to the trainer."""


class MissingDependency(PenstockError, ImportError):
    """An optional package is needed here and is not installed; the message has the pip line."""


class PackageClash(PenstockError, ImportError):
    """Another distribution installs the package `penstock` into the same environment."""


class LossyExport(PenstockError, ValueError):
    """A format that cannot hold all of a version; each field and column is named, with the reason."""


class InvalidWeights(PenstockError, ValueError):
    """Weights of a model that are not there, are not the ones stated, or do not fit the model."""


class ModelFailed(PenstockError, RuntimeError):
    """A model whose device is missing, that does not fit into memory, or whose results are not repeatable."""


class EngineUnreachable(PenstockError, ConnectionError):
    """A compute engine's controller that gave no answer; nothing is known of its jobs, which go on meanwhile."""


class InvalidCluster(PenstockError, ValueError):
    """A compute cluster with a wrong description, or one that refuses the job as described; the message says why."""


class JobFailed(PenstockError, RuntimeError):
    """A job whose blocks another attempt would not bring to an end; the message names blocks, nodes and last words."""


class JobCancelled(PenstockError, RuntimeError):
    """A job that somebody ended while another process waited for it."""


class CodeMismatch(PenstockError, RuntimeError):
    """A node with another source tree or another minor release of Python than the job was submitted with."""


class InvalidSpec(PenstockError, ValueError):
    """The file of a training run that cannot be started; the message names file, key and what is accepted."""


class RunTaken(PenstockError, RuntimeError):
    """A run of that name was started from a file that says something else: choose another name."""
