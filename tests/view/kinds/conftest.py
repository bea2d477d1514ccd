"""Pixels of media."""

import io

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def read_pixels():
    """read_pixels(media): uint8 [H, W, C] of a PNG or JPEG."""

    def read(media):
        with Image.open(io.BytesIO(media.data)) as picture:
            assert Image.MIME[picture.format] == media.type
            pixels = np.asarray(picture)
        return pixels[:, :, None] if pixels.ndim == 2 else pixels

    return read
