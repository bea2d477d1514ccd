"""Choose a worker's environment: few variables, no secrets that untrusted files could leak, and its share of GPUs."""

import ctypes
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from loader.storage import RangeReader
from loader.storage.spec import is_secret

VISIBLE = "CUDA_VISIBLE_DEVICES"
PLACE = "PENSTOCK_PLACE"
"""Variable that names a bound worker's device."""
_CUDA_BUILD = re.compile(r"^cuda\b[^=]*=\s*['\"]", re.M)


def visible_gpus() -> tuple[str, ...]:
    """Return the entries of CUDA_VISIBLE_DEVICES, or the numbers of all GPUs."""
    variable = os.environ.get(VISIBLE)
    if variable is None:
        return tuple(map(str, range(n_gpus())))
    entries = []
    for entry in map(str.strip, variable.split(",")):
        if not entry or entry.startswith("-") or entry == "NoDevFiles":  # CUDA ignores the rest
            break
        entries.append(entry)
    return tuple(entries)


def shares(gpus: Sequence[str], each: int) -> tuple[str, ...]:
    """Return the GPUs in whole groups of `each`, as values of CUDA_VISIBLE_DEVICES."""
    return tuple(",".join(gpus[at : at + each]) for at in range(0, len(gpus) - each + 1, each))


def share_variables(share: str) -> Mapping[str, str]:
    """Return the variables that bind a worker to a share."""
    return {VISIBLE: share, PLACE: "cuda:0"}


def place_here() -> str:
    """Return "cuda:0" in a worker that is bound to a GPU, else ""."""
    return os.environ.get(PLACE, "")


@cache
def n_gpus() -> int:
    """Return the number of GPUs that torch would use, by the driver."""
    if not _has_cuda():
        return 0
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # no driver
        return 0
    count = ctypes.c_int(0)
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value


def _has_cuda() -> bool:
    spec = find_spec("torch")  # does not import torch
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    return version.exists() and _CUDA_BUILD.search(version.read_text()) is not None


_NEEDED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TZDIR", "TMPDIR", "XDG_CACHE_HOME"),
        "PENSTOCK_PLACES",
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONUNBUFFERED"),
        *(
            "PYTHONDONTWRITEBYTECODE",
            "PYTHONPYCACHEPREFIX",
            "PYTHONWARNINGS",
            "PYTHONNOUSERSITE",
            "PYTHONUSERBASE",
        ),
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
    }
)
_FAMILIES = (
    *("LC_*", "OMP_*", "OPENBLAS_*", "MKL_*", "KMP_*", "GOMP_*", "BLIS_*", "MALLOC_*", "SVT_LOG"),
    *("CUDA_*", "NVIDIA_*", "CUBLAS_*", "CUDNN_*", "HIP_*", "ROCR_*", "PYTORCH_*", "TORCH*", "TRITON_*"),
)
"""Variables for threads, memory and accelerators; names of secrets are excluded."""

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Each core has a worker; OpenBLAS would start a busy-waiting thread per core in each."""


def worker_environment(more: Collection[str] = ()) -> dict[str, str]:
    """Return a worker's environment. more: additional variables, or prefixes such as 'AWS_*'."""
    return {**_ONE_THREAD, **{name: value for name, value in os.environ.items() if _applies(name, more)}}


def _applies(name: str, more: Collection[str]) -> bool:
    if name in _NEEDED or any(fnmatchcase(name, pattern) for pattern in more):
        return True
    return any(fnmatchcase(name, family) for family in _FAMILIES) and not is_secret(name)


_OF_PROVIDER: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("s3", "s3a"), ("AWS_*",)),
    **dict.fromkeys(("gs", "gcs"), ("GOOGLE_*", "CLOUDSDK_*", "GCE_METADATA_*", "STORAGE_EMULATOR_HOST")),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), ("AZURE_*", "MSI_*", "IDENTITY_*")),
    "hf": ("HF_*",),
}
_OF_NETWORKS = (
    *(
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
    ),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "FSSPEC_*"),
)
_ON_THIS_MACHINE = ("file", "local", "memory")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def store_variables(*places: RangeReader | str) -> frozenset[str]:
    """Return the variables, or prefixes such as 'AWS_*', that these stores need.

    Other fsspec file systems need `ComputeResource.variables`.
    """
    return frozenset(name for place in places for name in _path_entries(place))


def _path_entries(place: RangeReader | str) -> Iterator[str]:
    if not isinstance(place, str):
        yield from getattr(place, "variables", ())  # variables that a source's options name
        for member in getattr(place, "stores", ()):  # members of a root with mirrors
            yield from _path_entries(member)
    url = place if isinstance(place, str) else place.url
    for scheme in _SCHEME.findall(url):
        if scheme.lower() not in _ON_THIS_MACHINE:
            yield from _OF_NETWORKS
            yield from _OF_PROVIDER.get(scheme.lower(), ())
