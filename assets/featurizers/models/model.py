"""Featurizers that compute features with a neural network, in batches."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from assets import invalid_option
from penstock.compute.pool.environment import place_here

from ...media.unit import Unusable
from ..decoding import kind_field
from ..featurizer import Features, Featurizer, version_of
from .batching import ModelBatches, Row, gather_features
from .devices import DTYPES, budget_bytes, check_device, check_device_name, process_device, repeatable
from .weights import local_weights, weights_sha256

if TYPE_CHECKING:
    import torch

M = TypeVar("M", bound="ModelFeaturizer")

SMALLEST = {"cpu": 1, "cuda": 8}
"""Rows in the smallest batch. On one CPU thread more are no faster (ViT-S: 121 ms per image for 1 and 8)."""

LARGEST = {"cpu": 1, "cuda": 256}
"""Rows in the largest batch to try."""

# Parameters that do not change the features. `weights` is among them because only the file's content matters.
_ONLY_SPEED = frozenset({"weights", "sha256", "max_batch_size", "memory_bytes", "readers"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFeaturizer(Featurizer):
    """Base class of featurizers that run a model: override `load`, `prepare`, `run` and `finish`, not `__call__`.

    The same bytes give the same features in any batch, process and order; on another processor type or torch release
    the last bits may differ. Raises: InvalidSpec for an invalid field.
    """

    weights: str
    """Path or URL of a .safetensors file, or a folder with one (see `weights`)."""
    sha256: str = ""
    """Expected `weights_sha256`; "": `version` reads the file."""
    device: str = "auto"
    """"cpu", "cuda" (all GPUs), "cuda:1", or "auto": "cuda" if a worker's torch has a GPU."""
    dtype: str = "float32"
    """Dtype of weights and of floats in batches: "float32", "bfloat16" or "float16"."""
    batch_size: int = 0
    """Rows in the smallest batch; 0 means 1 on a CPU, 8 on a GPU. Part of the version, like device and dtype."""
    max_batch_size: int = 0
    """Most rows in a batch; 0 means 256 on a GPU, `batch_size` on a CPU."""
    memory_bytes: int = 0
    """Most bytes of a larger batch; 0 means 1 GiB on a CPU, 0.8 of a GPU's free bytes."""
    readers: int = 0
    """Threads that decode samples; 0 means 1 on a CPU and 8 on a GPU."""

    def __post_init__(self) -> None:
        check_device_name(self.device)
        if self.dtype not in DTYPES:
            raise invalid_option("dtype", self.dtype, ", ".join(DTYPES))
        for name in ("batch_size", "max_batch_size", "memory_bytes", "readers"):
            if getattr(self, name) < 0:
                raise invalid_option(name, getattr(self, name), "0 (a default by device) or more")
        if self.device != "auto":
            smallest = SMALLEST[self.device.partition(":")[0]]
            object.__setattr__(self, "batch_size", self.batch_size or smallest)

    @property
    @abstractmethod
    def name(self) -> str:
        """See `Featurizer`."""

    @property
    def version(self) -> str:
        """See `Featurizer`. Reads the weights if no sha256 is stated. Raises: InvalidWeights; StoreError."""
        return version_of(self.code, self._identity_parameters(), self.sha256 or weights_sha256(self.weights))

    @property
    def declared_version(self) -> str:
        """Version computed without reading the weights; features with a different declared version are stale."""
        return version_of(self.code, self._identity_parameters(), self.sha256 or "not stated")

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """See `Featurizer`: each field's dimension names, and the weights' hash if `sha256` is set."""
        if self.sha256:
            weights = {"weights_sha256": self.sha256}
        else:
            weights = {}
        if self.dims:
            dims = {"dims": list(self.dims)}
        else:
            dims = {}
        fields = sorted({field for fields in self.outputs.values() for field in fields})
        return {field: {**weights, **dims} for field in fields if weights or dims}

    @property
    def dims(self) -> Sequence[str]:
        """Names of the fields' dimensions; () if they differ between fields or kinds."""
        return ()

    @abstractmethod
    def load(self, path: Path, dtype: "torch.dtype", place: str) -> Any:
        """Load the verified file or folder at `path` onto the device `place`, in eval mode. Raises: InvalidWeights."""

    @abstractmethod
    def prepare(self, model: Any, kind: str, sample: Mapping[str, bytes]) -> Sequence[Row]:
        """Return a sample's rows as NumPy arrays: one for a photo, several for a clip.

        Floats are cast to the model's dtype. Called from several threads. Raises: Unusable.
        """

    @abstractmethod
    def run(self, model: Any, batch: Mapping[str, "torch.Tensor"]) -> Mapping[str, "torch.Tensor"]:
        """Return a batch's results, name -> [rows, ...], independent of other rows and of random draws."""

    @abstractmethod
    def finish(self, model: Any, kind: str, rows: Sequence[Row]) -> Features:
        """Return one sample's features from its rows' results, with floats as float32. Raises: Unusable."""

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        """See `Featurizer`."""
        (result,) = self.features(kind, [sample])
        if isinstance(result, Unusable):
            raise result
        return result

    def features(
        self, kind: str, samples: Iterable[Mapping[str, bytes]], place: str = ""
    ) -> list[Features | Unusable]:
        """Return each sample's features or refusal, bit for bit as if computed on its own.

        place: torch device, see `process_device`. Raises: InvalidWeights; ModelFailed; StoreError.
        """
        kind_field(self.inputs, kind)  # raises for a kind that it does not accept
        settled = at_place(pin_featurizer(self), place)
        with repeatable():
            model, batches = _load_model(settled)
            readers = self.readers or (1 if settled.device == "cpu" else 8)
            prepare = partial(self.prepare, model, kind)
            finish = partial(self.finish, model, kind)
            return gather_features(samples, prepare, batches, finish, readers)

    def _identity_parameters(self) -> dict[str, Any]:
        parameters = {
            item.name: getattr(self, item.name) for item in fields(self) if item.name not in _ONLY_SPEED
        }
        return {**parameters, "device": self.device.partition(":")[0]}


def pin_featurizer(featurizer: M) -> M:
    """Return the featurizer with `sha256` set to its current weights' hash. Raises: InvalidWeights; StoreError."""
    if featurizer.sha256:
        return featurizer
    return replace(featurizer, sha256=weights_sha256(featurizer.weights))


def at_place(featurizer: M, place: str) -> M:
    """Return the featurizer with its device and batch sizes resolved for `place`. Raises: ModelFailed."""
    return replace(featurizer, device=process_device(featurizer.device, place))


def machine_facts(featurizer: ModelFeaturizer, place: str = "") -> dict[str, str | int]:
    """Load the model and return the machine's facts that determine its bits.

    Raises: InvalidWeights; ModelFailed; StoreError; MissingDependency.
    """
    import torch

    settled = at_place(featurizer, place or place_here())
    with repeatable():
        _load_model(settled)
    kind = settled.device.partition(":")[0]
    if kind == "cuda":
        processor = torch.cuda.get_device_name(settled.device)
    else:
        processor = torch.backends.cpu.get_cpu_capability()
    return {
        "device": kind,
        "batch_size": settled.batch_size,
        "torch": str(torch.__version__),
        "processor": processor,
    }


@lru_cache(maxsize=2)
def _load_model(featurizer: ModelFeaturizer) -> tuple[Any, ModelBatches]:
    import torch

    place = featurizer.device
    check_device(place)
    dtype: torch.dtype = getattr(torch, featurizer.dtype)
    with local_weights(featurizer.weights, featurizer.sha256) as path:
        model = featurizer.load(path, dtype, place)
    return model, ModelBatches(
        lambda batch: featurizer.run(model, batch),
        place=place,
        dtype=dtype,
        batch_size=featurizer.batch_size,
        max_batch_size=featurizer.max_batch_size
        or max(featurizer.batch_size, LARGEST[place.partition(":")[0]]),
        memory_bytes=featurizer.memory_bytes or budget_bytes(place),
    )


_NETWORKS = "assets.featurizers.models.networks"  # imports torch

EMBEDDERS = {
    "transformers": f"{_NETWORKS}:load_clip",
    "timm": f"{_NETWORKS}:load_timm",
}
CODERS = {"diffusers": f"{_NETWORKS}:load_diffusers"}
CAPTIONERS = {"transformers": f"{_NETWORKS}:load_captioner"}


def check_network(networks: Mapping[str, str], name: str) -> None:
    """Check that `name` is in `networks` or has the form "module:function". Raises: InvalidSpec."""
    if name not in networks and ":" not in name:
        named = ", ".join(map(repr, networks))
        raise invalid_option("network", name, f"{named}, or 'module:function' of another one")


def network_loader(networks: Mapping[str, str], name: str) -> Callable[..., Any]:
    """Return the function that loads a network. Raises: ImportError, AttributeError."""
    module, _, function = networks.get(name, name).partition(":")
    loader: Callable[..., Any] = getattr(import_module(module), function)
    return loader
