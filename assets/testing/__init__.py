"""Conformance suites of what the pipeline is extended with. See `loader.testing`."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.featurizers")
