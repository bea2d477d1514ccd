"""Describe how images look in 320 numbers, without a network, so that copies and crops lie close by cosine.

An image is shrunk to 48 x 48 px. Its numbers are mean colours of 4 x 4 blocks in CIELAB, and histograms of 16
directions of gradients in those blocks and in the whole image. Each number is mixed with its mirror image's. Gradients
survive grey and brightness, the whole image's histogram survives crops, and the mix survives mirroring.

All sums are of whole numbers, exact in float64 in any order, so that machines agree to the last bit. HOG of OpenCV and
scikit-image, and learned networks, differ between versions and processors.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .decoding import Array, kind_field, sample_images, shrink, three_frames
from .featurizer import Features, Featurizer

SIDE_PX = 48
"""Height and width to which images are shrunk, whatever their shape."""

BLOCKS = 4
"""Blocks along each side."""

DIRECTIONS = 16
"""Directions of a histogram, 22.5 degrees apart."""

_N_COLOURS = BLOCKS * BLOCKS * 3
_N_HISTOGRAMS = BLOCKS * BLOCKS + 1
WIDTH = _N_COLOURS + _N_HISTOGRAMS * DIRECTIONS
"""Numbers of a vector: 48 of colour, 272 of gradients."""

# Weights, chosen by how many of 107 photos their altered copies find. The histograms of blocks weigh 1.
LIGHTNESS = 0.2
"""Weight of the blocks' lightness."""
COLOUR = 0.5
"""Weight of the blocks' a* and b* at strong colours."""
COMMON = 0.8
"""Share that is subtracted of what all histograms share: unrelated photos have cosines of 0.2 instead of 0.8."""
ODD = 0.5
"""Weight of what mirroring reverses: 1 would tell an image from its mirror image, 0 never."""

_BLOCK_PX = SIDE_PX // BLOCKS
_LAB_STEPS = 64  # whole numbers per unit of L*, a* and b*
_STRONG_COLOUR = 60
_STRONG_SUM = _STRONG_COLOUR * _LAB_STEPS * _BLOCK_PX**2
_DIRECTION_STEPS = 64  # whole numbers between two directions
_SHARE_STEPS = 2 * _BLOCK_PX  # whole numbers of a pixel's share in a block, along one side
# An image without gradients has all directions alike, so that its vector is not zero. In L* per pixel: 1 / 8.
_LEAST_GRADIENT = _LAB_STEPS // 8
_MIRRORED_DIRECTIONS = (DIRECTIONS // 2 - np.arange(DIRECTIONS)) % DIRECTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Appearance(Featurizer):
    """Field `appearance.npy`: float16 [320] of length 1; of a clip, the sum over first, middle and last frame.

    Copies that are recompressed, brighter, gray, mirrored or cropped have the largest cosine.
    """

    image: str | None = "jpg"
    """Field of photos; None skips them."""
    video: str | None = "mp4"
    """Field of clips; None skips them."""
    name: ClassVar[str] = "appearance"
    """Name of the featurizer."""
    output_fields: ClassVar[tuple[str, ...]] = ("appearance.npy",)

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        return {"appearance.npy": {"dims": ["component"]}}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = kind_field(self.inputs, kind)
        total = np.zeros(WIDTH)
        images = sample_images(
            kind,
            sample,
            field,
            three_frames,
        )
        for image in images:
            total += appearance(image)
        vector = _unit(total).astype(np.float16)
        return Features(
            fields={"appearance.npy": vector},
            columns={},
        )


def appearance(pixels: Array) -> Array:
    """Return the description, float64 [320] of length 1, of uint8 sRGB [H, W, 3]."""
    small = shrink(pixels, (SIDE_PX, SIDE_PX))
    lab = _lab(small)
    colours = _block_sums(lab)  # [BLOCKS, BLOCKS, 3]
    gradients = _gradients(lab[:, :, 0])  # [SIDE_PX, SIDE_PX, DIRECTIONS]

    contrast = _unit(_contrast(colours[:, :, :1]))
    contrast = LIGHTNESS * contrast
    colour = colours[:, :, 1:] / _STRONG_SUM
    colour = COLOUR / BLOCKS * colour
    local = _root_shares(_block_histograms(gradients))
    whole = _root_shares(_whole_histogram(gradients))
    own = _flat_basis(
        contrast,
        colour,
        local,
        whole,
    )
    mirrored = _flat_basis(
        contrast[:, ::-1],
        colour[:, ::-1],
        local[:, ::-1, _MIRRORED_DIRECTIONS],
        whole[:, ::-1, _MIRRORED_DIRECTIONS],
    )
    even = (own + mirrored) / 2  # equal for an image and its mirror image
    odd = (own - mirrored) / 2  # of opposite sign for the two
    mixed = even + ODD * odd
    return _unit(mixed)


def _flat_basis(*parts: Array) -> Array:
    """Return all numbers of the parts in one vector [WIDTH]."""
    flat = [part.ravel() for part in parts]
    return np.concatenate(flat)


def _linear_light() -> Array:
    """Return linear light from 0 to 65,535, as whole numbers, of the 256 levels of sRGB (IEC 61966-2-1)."""
    level = np.arange(256) / 255
    light = np.where(
        level <= 0.04045,
        level / 12.92,
        ((level + 0.055) / 1.055) ** 2.4,
    )
    levels: Array = np.rint(light * 65_535)
    return levels


_ROOT_STEPS = 4_096


def _cube_roots() -> Array:
    """Return the function f of CIELAB in units of L*, as whole numbers, for light from 0 to 1 in 4,096 steps."""
    step = np.arange(_ROOT_STEPS + 1)
    light = step / _ROOT_STEPS
    bend = 6 / 29
    root = np.where(
        light > bend**3,
        np.cbrt(light),
        light / (3 * bend**2) + 4 / 29,
    )
    roots: Array = np.rint(root * 116 * _LAB_STEPS)
    return roots


_LIGHT = _linear_light()
_ROOTS = _cube_roots()
# Shares of linear R, G and B in X, Y and Z, relative to white (D65). Each row sums to 2 ** 14.
_XYZ = np.array(
    [
        [7_110, 6_164, 3_110],
        [3_484, 11_717, 1_183],
        [291, 1_794, 14_299],
    ],
    np.float64,
)
_MOST_LIGHT = 65_535 * 2**14


def _lab(pixels: Array) -> Array:
    """Return L*, a* and b* in whole numbers, float64 [H, W, 3], of uint8 sRGB [H, W, 3]."""
    xyz = _LIGHT[pixels] @ _XYZ.T  # whole numbers up to 2 ** 30, so exact
    steps = np.rint(xyz * (_ROOT_STEPS / _MOST_LIGHT))
    steps = steps.astype(np.intp)
    roots = _ROOTS[steps]
    x = roots[:, :, 0]
    y = roots[:, :, 1]
    z = roots[:, :, 2]
    lightness = y - 16 * _LAB_STEPS
    red_green = (x - y) * (500 / 116)
    yellow_blue = (y - z) * (200 / 116)
    red_green = np.rint(red_green)
    yellow_blue = np.rint(yellow_blue)
    return np.stack(
        [
            lightness,
            red_green,
            yellow_blue,
        ],
        axis=-1,
    )


def _block_sums(lab: Array) -> Array:
    """Return the sums over blocks, float64 [BLOCKS, BLOCKS, 3]."""
    blocks = lab.reshape(
        BLOCKS,
        _BLOCK_PX,
        BLOCKS,
        _BLOCK_PX,
        3,
    )
    sums: Array = blocks.sum(axis=(1, 3))
    return sums


def _contrast(lightness: Array) -> Array:
    """Return how much lighter each block is than the mean of all, times their number, so that it stays whole."""
    contrast: Array = lightness * lightness.size - lightness.sum()
    return contrast


_STEPS_PER_RADIAN = DIRECTIONS * _DIRECTION_STEPS / (2 * np.pi)


def _gradients(lightness: Array) -> Array:
    """Return each pixel's gradient by direction, whole numbers [SIDE_PX, SIDE_PX, DIRECTIONS]; two are not 0."""
    padded = np.pad(lightness, 1, mode="edge")
    columns = padded[:, 1:-1]
    rows = padded[1:-1]
    down = columns[2:] - columns[:-2]
    right = rows[:, 2:] - rows[:, :-2]
    squares = right * right + down * down
    length = np.rint(np.sqrt(squares))
    length = length.ravel()
    # Rounded before it is divided: the last bit of an arctangent differs between processors.
    angle = np.arctan2(down, right)
    turn = np.rint(angle * _STEPS_PER_RADIAN)
    turn = turn.astype(np.intp).ravel()
    # A gradient between two directions counts for both, more for the nearer one.
    lower = turn // _DIRECTION_STEPS % DIRECTIONS
    upper = (lower + 1) % DIRECTIONS
    to_upper = turn % _DIRECTION_STEPS
    to_lower = _DIRECTION_STEPS - to_upper
    n_pixels = len(length)
    pixel = np.arange(n_pixels)
    gradients = np.zeros((n_pixels, DIRECTIONS))
    gradients[pixel, lower] = length * to_lower
    gradients[pixel, upper] = length * to_upper
    return gradients.reshape(
        SIDE_PX,
        SIDE_PX,
        DIRECTIONS,
    )


def _block_shares() -> Array:
    """Return each row's share in each block, whole numbers [SIDE_PX, BLOCKS].

    It falls from the block's centre to 0 at the centres of the next blocks.
    """
    row = 2 * np.arange(SIDE_PX) + 1  # its centre in half pixels, a whole number
    block = np.arange(BLOCKS)
    centre = _BLOCK_PX * (2 * block + 1)
    distance = np.abs(row[:, None] - centre)
    closeness = _SHARE_STEPS - distance
    shares = np.maximum(0, closeness)
    exact: Array = shares.astype(np.float64)
    return exact


_SHARES = _block_shares()


def _block_histograms(gradients: Array) -> Array:
    """Return the histograms of blocks, whole numbers [BLOCKS, BLOCKS, DIRECTIONS].

    gradients: whole numbers [SIDE_PX, SIDE_PX, DIRECTIONS]. A pixel counts for each block by the product of its row's
    and its column's share.
    """
    # The rows of pixels become rows of blocks, then the columns.
    rows = _SHARES.T @ gradients.reshape(SIDE_PX, -1)
    rows = rows.reshape(
        BLOCKS,
        SIDE_PX,
        DIRECTIONS,
    )
    histograms: Array = np.matmul(_SHARES.T, rows)  # below 2 ** 45, so exact
    return histograms


def _whole_histogram(gradients: Array) -> Array:
    """Return the histogram of all pixels, whole numbers [1, 1, DIRECTIONS]."""
    total = gradients.sum(
        axis=(0, 1),
        keepdims=True,
    )
    whole: Array = total * _SHARE_STEPS**2  # the scale of the blocks' histograms
    return whole


_LEAST_SUM = _LEAST_GRADIENT * _DIRECTION_STEPS * (SIDE_PX * _SHARE_STEPS) ** 2


def _root_shares(histograms: Array) -> Array:
    """Return square roots of shares, so that one strong edge does not outweigh all others, less the common part."""
    # Without gradients, all directions have the same share.
    raised = histograms + np.rint(_LEAST_SUM / histograms.size)
    shares = raised / raised.sum()
    roots = np.sqrt(shares)
    even = np.sqrt(1 / histograms.size)
    common = COMMON * even
    less: Array = roots - common
    return less


def _unit(vector: Array) -> Array:
    """Return the vector with length 1, or unchanged if it is zero."""
    squares = np.square(vector).ravel()
    # An exact sum, because numpy's order of summation differs between processors.
    total = math.fsum(squares.tolist())
    length = math.sqrt(total)
    if not length:
        return vector
    unit: Array = vector / length
    return unit
