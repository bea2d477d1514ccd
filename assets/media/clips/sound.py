"""The sound of clips: the samples of each clip's span, from the video's first audio stream."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from ..audio.decode import Timeline, pieces_at
from ..audio.flac import write_flac
from ..container import first_sound, opened
from ..unit import MetadataValue

SOUND_FIELD, SOUND_GROUP = "sound.flac", "sound"

Columns = Mapping[str, MetadataValue]


def write_sounds(
    path: str, spans: Sequence[tuple[Fraction, Fraction]], targets: Sequence[Path], rate_hz: int
) -> list[Columns]:
    """Write the sound of each [start, end) in s of the container's clock to its target, where there is any.

    The sound is one channel, mixed by ITU-R BS.775, lowered where it would exceed full scale. Returned are the columns
    of each span, in the order of the spans. sound_missing_s: seconds of the span of which the source has no sound.

    Raises: Unusable; StoreError when the disk is full.
    """
    found: list[Columns] = [{"has_sound": False, "sound_missing_s": None} for _ in spans]
    with opened(path) as container:
        stream = first_sound(container)
        if stream is None:
            return found
        order = sorted(range(len(spans)), key=lambda place: spans[place][0])
        timeline = Timeline(container, stream, rate_hz)
        pieces = pieces_at(timeline, [spans[place] for place in order], rate_hz)
        for place, (samples, n_real) in zip(order, pieces, strict=True):
            if n_real:
                gain_db = write_flac(targets[place], samples, rate_hz)
                missing_s = (samples.shape[1] - n_real) / rate_hz
                found[place] = {"has_sound": True, "sound_missing_s": missing_s, "sound_gain_db": gain_db}
        if timeline.mix is None:
            return found
        whole: Columns = {"sound_downmix": timeline.mix.name, "mono_cancels": timeline.mono_sum.cancels()}
    return [{**columns, **whole} if columns["has_sound"] else columns for columns in found]
