"""A dataset to annotate."""

import pytest

from tests.dataset.labels.annotated import write


@pytest.fixture
def label_root(root):
    """d@1: ten samples in parts of four, label "a" and w = their number; two of each raw object."""
    write(root, range(10), part_samples=4)
    return root
