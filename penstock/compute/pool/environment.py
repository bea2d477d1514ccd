"""Environment of a worker: a short list of this process's variables, and none of the secrets beside them.

A worker decodes files that nobody has vouched for. Such a file cannot make it tell a secret that it does not hold.
"""

import os
from collections.abc import Collection
from fnmatch import fnmatchcase

from loader.storage.spec import is_secret

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
"""Threads, memory, and accelerators; not those that are secret by their name."""

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""There is a worker for every core. OpenBLAS, which numpy comes with, would start a thread for every core in each of
them, and they wait for the next product in a loop. A value that the environment sets comes first."""


def worker_environment(more: Collection[str] = ()) -> dict[str, str]:
    """Return the environment that a worker is started with.

    more: names of further variables, or of all that begin so: 'AWS_*'.
    """
    return {**_ONE_THREAD, **{name: value for name, value in os.environ.items() if _is_for(name, more)}}


def _is_for(name: str, more: Collection[str]) -> bool:
    if name in _NEEDED or any(fnmatchcase(name, pattern) for pattern in more):
        return True
    return any(fnmatchcase(name, family) for family in _FAMILIES) and not is_secret(name)
