"""Conformance suites for extensions: of stores (`loader.testing.stores`) and of modalities (`.modalities`).

A suite is a class. Extend it in a test file with a fixture that returns the object under test; pytest then runs all
tests of the suite. Needs `pip install 'penstock-data[testing]'`.
"""

from ..errors import MissingDependency

try:
    import pytest
except ImportError as error:
    raise MissingDependency(
        "conformance suites need the package 'pytest', which is not installed: pip install 'penstock-data[testing]'"
    ) from error

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("stores", "modalities")))
