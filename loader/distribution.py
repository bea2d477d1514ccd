"""The installed distribution, and a check against another project's `penstock`."""

import os
import re
import sys

from .errors import PackageClash

DISTRIBUTION = "penstock-data"
"""Distribution name for pip."""

_INFO = re.compile(r"(penstock|penstock_data)-[^-]+\.(?:dist|egg)-info", re.I)


def check_only_distribution() -> None:
    """Raise PackageClash if a distribution called `penstock` is installed too: both contain `penstock/`."""
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
