"""Model featurizers: their work is done in batches, by a network with weights of its own."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.compute.pool.environment import place_here

from ...media.unit import Unusable
from ..decoding import field_of
from ..featurizer import Features, Featurizer, version_of
from .batching import Batches, Row
from .devices import DTYPES, budget_bytes, check_device, check_device_name, device_at, repeatable
from .gathering import gathered
from .weights import local_weights, weights_sha256

if TYPE_CHECKING:
    import torch

M = TypeVar("M", bound="ModelFeaturizer")

SMALLEST = {"cpu": 1, "cuda": 8}
"""Rows of the smallest batch. On one thread of a CPU larger ones were no faster (ViT-S: 121 ms an image in batches of
1, 121 in batches of 8), and rows that only fill up are lost."""

LARGEST = {"cpu": 1, "cuda": 256}
"""Rows of the largest batch that is tried."""

_ONLY_SPEED = frozenset({"weights", "sha256", "max_batch_size", "memory_bytes", "readers"})
"""Parameters that the features do not depend on; of the weights they depend on the content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFeaturizer(Featurizer):
    """A `Featurizer` that runs a model: in place of `__call__` it has `load`, `prepare`, `run`, `finish`.

    The same bytes give the same features on the same kind of processor with the same release of torch, in any
    batch, process and order. Another kind of CPU or GPU may differ in the last bits.

    Raises: ValueError.
    """

    weights: str
    """Path or URL of a .safetensors file, or of a folder with one (see `weights`)."""
    sha256: str = ""
    """Result of `weights_sha256` for the weights; "" takes the file that lies there now. With a hash, nothing is
    read to know the version."""
    device: str = "auto"
    """"cpu", "cuda" (all GPUs), "cuda:1", or "auto", settled where samples are computed: "cuda" where a worker has a
    GPU that torch was built for."""
    dtype: str = "float32"
    """dtype of the weights and of floats in batches: "float32", "bfloat16", "float16"."""
    batch_size: int = 0
    """Rows of the smallest batch, which is filled up; 0 is 1 on a CPU and 8 on a GPU. Batch size, device and dtype
    are part of the version: they decide the bits. Of "auto" the record says which device it was."""
    max_batch_size: int = 0
    """Rows of larger batches, used where they give the same bits; 0 is none on a CPU and 256 on a GPU."""
    memory_bytes: int = 0
    """Bytes that larger batches may take; 0 is 1 GiB on a CPU and 0.8 of the free bytes on a GPU."""
    readers: int = 0
    """Threads that decode samples; 0 is 1 on a CPU and 8 on a GPU."""

    def __post_init__(self) -> None:
        check_device_name(self.device)
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r}; accepted: {', '.join(DTYPES)}")
        for name in ("batch_size", "max_batch_size", "memory_bytes", "readers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}; accepted: 0 (a default by device) or more")
        if self.device != "auto":
            smallest = SMALLEST[self.device.partition(":")[0]]
            object.__setattr__(self, "batch_size", self.batch_size or smallest)

    @property
    @abstractmethod
    def name(self) -> str:
        """See `Featurizer`."""

    @property
    def version(self) -> str:
        """See `Featurizer`. Without a stated sha256 the weights are read. Raises: InvalidWeights; StoreError."""
        return version_of(self.code, self._stated(), self.sha256 or weights_sha256(self.weights))

    @property
    def declared_version(self) -> str:
        """The version as far as it is known without reading anything; where it differs, the features are stale."""
        return version_of(self.code, self._stated(), self.sha256 or "not stated")

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """See `Featurizer`: of each field the weights, once their hash is stated or `pinned`, and its dimensions."""
        weights = {"weights_sha256": self.sha256} if self.sha256 else {}
        dims = {"dims": list(self.dims)} if self.dims else {}
        fields = sorted({field for fields in self.outputs.values() for field in fields})
        return {field: {**weights, **dims} for field in fields if weights or dims}

    @property
    def dims(self) -> Sequence[str]:
        """Names of the dimensions of its fields; none where they differ between fields or kinds."""
        return ()

    @abstractmethod
    def load(self, path: Path, dtype: "torch.dtype", place: str) -> Any:
        """Return the model in eval mode on that device, of the verified file or folder at `path`.

        Raises: InvalidWeights when the weights are not this model's.
        """

    @abstractmethod
    def prepare(self, model: Any, kind: str, sample: Mapping[str, bytes]) -> Sequence[Row]:
        """Return the rows that one sample brings into a batch: one for a photo, several for a clip.

        NumPy, no torch: floats arrive in the model's dtype, integers as they are. Called from several threads.

        Raises: Unusable for bytes that it cannot take.
        """

    @abstractmethod
    def run(self, model: Any, batch: Mapping[str, "torch.Tensor"]) -> Mapping[str, "torch.Tensor"]:
        """Return the results of a batch, name -> [rows, ...]; rows neither see one another nor anything random."""

    @abstractmethod
    def finish(self, model: Any, kind: str, rows: Sequence[Row]) -> Features:
        """Return the features of one sample of its rows' results, floats as float32. Raises: Unusable."""

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        """See `Featurizer`."""
        (made,) = self.features(kind, [sample])
        if isinstance(made, Unusable):
            raise made
        return made

    def features(
        self, kind: str, samples: Iterable[Mapping[str, bytes]], place: str = ""
    ) -> list[Features | Unusable]:
        """Return the features or refusal of each sample: bit for bit the same as for the sample alone.

        place: see `device_at`. Raises: InvalidWeights; ModelFailed; StoreError.
        """
        field_of(self.inputs, kind)  # a kind that is not its own
        one = settled_at(pinned(self), place)
        with repeatable():
            model, batches = _loaded(one)
            readers = self.readers or (1 if one.device == "cpu" else 8)
            return gathered(self, model, batches, kind, samples, readers)

    def _stated(self) -> dict[str, Any]:
        told = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in _ONLY_SPEED}
        return {**told, "device": self.device.partition(":")[0]}


def pinned(featurizer: M) -> M:
    """Return the featurizer with the sha256 of the weights that lie there now, so that a stage computes with one set.

    Nothing is read when it is stated. Raises: InvalidWeights when there are none; StoreError.
    """
    if featurizer.sha256:
        return featurizer
    return replace(featurizer, sha256=weights_sha256(featurizer.weights))


def settled_at(featurizer: M, place: str) -> M:
    """Return the featurizer with the device, and its batch size, of a worker's place. Raises: ModelFailed."""
    return replace(featurizer, device=device_at(featurizer.device, place))


def tried_out(featurizer: ModelFeaturizer, place: str = "") -> dict[str, str | int]:
    """Load the model, before any sample is touched, and return the facts of its machine that decide the bits.

    Raises: InvalidWeights; ModelFailed; StoreError; MissingDependency.
    """
    import torch

    one = settled_at(featurizer, place or place_here())
    with repeatable():
        _loaded(one)
    kind = one.device.partition(":")[0]
    on = torch.cuda.get_device_name(one.device) if kind == "cuda" else torch.backends.cpu.get_cpu_capability()
    return {"device": kind, "batch_size": one.batch_size, "torch": str(torch.__version__), "processor": on}


@lru_cache(maxsize=2)
def _loaded(featurizer: ModelFeaturizer) -> tuple[Any, Batches]:
    """Return the model and its batches, once per process and device; the two used last stay in memory."""
    import torch

    place = featurizer.device
    check_device(place)
    dtype: torch.dtype = getattr(torch, featurizer.dtype)
    with local_weights(featurizer.weights, featurizer.sha256) as path:
        model = featurizer.load(path, dtype, place)
    return model, Batches(
        lambda batch: featurizer.run(model, batch),
        place=place,
        dtype=dtype,
        batch_size=featurizer.batch_size,
        max_batch_size=featurizer.max_batch_size
        or max(featurizer.batch_size, LARGEST[place.partition(":")[0]]),
        memory_bytes=featurizer.memory_bytes or budget_bytes(place),
    )
