"""Conformance suites for extensions: for stores (`loader.testing.stores`) and modalities (`loader.testing.modalities`).

A suite is a class: extend it in a test file with a fixture that returns the object under test.
Needs `pip install 'penstock-data[testing]'`.
"""

from ..errors import MissingDependency

try:
    import pytest
except ImportError as error:
    raise MissingDependency(
        "conformance suites need the package 'pytest', which is not installed: pip install 'penstock-data[testing]'"
    ) from error

# pytest rewrites assertions of test files only; without it a failure shows no values.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("stores", "modalities")))
