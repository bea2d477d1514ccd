"""The installed distribution, and the check that no other project's `penstock` lies in the same environment."""

import os
import re
import sys

from .errors import PackageClash

DISTRIBUTION = "penstock-data"
"""Name by which pip installs this project. `penstock` on the package index is another project."""

_INFO = re.compile(r"(penstock|penstock_data)-[^-]+\.(?:dist|egg)-info", re.I)


def check_only_distribution() -> None:
    """Check that `penstock-data` is not installed beside a distribution called `penstock`: both own `penstock/`.

    Lists the site folders of `sys.path`, 0.1 ms each: importlib.metadata alone takes 8 ms to import.

    Raises: PackageClash.
    """
    folders: dict[str, str] = {}
    for folder in sys.path:
        if os.path.basename(folder) not in ("site-packages", "dist-packages") or not os.path.isdir(folder):
            continue
        for name in os.listdir(folder):
            if match := _INFO.fullmatch(name):
                folders.setdefault(match[1].lower(), os.path.join(folder, name))
    if len(folders) == 2:
        raise PackageClash(
            f"two distributions install the package `penstock`: this one, {DISTRIBUTION} "
            f"({folders['penstock_data']}), and another project's `penstock` ({folders['penstock']}). Their files "
            f"overwrite each other. Remove both, then install only {DISTRIBUTION} again: "
            f"pip uninstall penstock {DISTRIBUTION} (docs/install.md)"
        )


__all__ = ["DISTRIBUTION", "check_only_distribution"]
