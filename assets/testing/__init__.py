"""Conformance suites for extensions of the pipeline."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.featurizers")
