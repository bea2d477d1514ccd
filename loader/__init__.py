"""penstock's loader: read and write dataset versions, and iterate over them in a guaranteed order.

root = loader.Root("data")                                   # a folder or bucket prefix
version = root.open("photos@latest")                         # an immutable version

plan = loader.plan({"photos": version}, seed=7, global_batch=64)
for batch in loader.Loader(plan): ...                        # every batch a pure function of its step
"""

from importlib import import_module
from importlib.util import find_spec
from sys import modules
from typing import TYPE_CHECKING, Any

from . import errors as errors

if TYPE_CHECKING:
    from .api import *  # noqa: F403 - what `__getattr__` gives
else:

    def __getattr__(name: str) -> Any:
        """Return a subpackage or a name from `api`, imported on first use: numpy and pyarrow take 0.3 s."""
        if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
            return import_module(f".{name}", __name__)
        is_public = not name.startswith("_")
        if is_public or name == "__all__":
            # `import_module`, since `from . import api` would call this function again, for "api".
            # Another project's `penstock` may have overwritten our files. Looking for it lists the site folders, so
            # only the first use does.
            if f"{__name__}.api" not in modules:
                import_module(".distribution", __name__).check_only_distribution()
            with import_module(".lazy_imports", __name__).without_collector():
                api = import_module(".api", __name__)
                if name in ("__all__", *api.__all__):
                    globals()[name] = api.named(name)
                    return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(import_module(".api", __name__).__all__)
