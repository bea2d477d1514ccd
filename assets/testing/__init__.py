"""Conformance suites for extensions of the pipeline. See `loader.testing`."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.featurizers")
