"""Audio of clips, from the video's first audio stream."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from ..audio.decode import AudioTimeline, pieces_at
from ..audio.flac import write_flac
from ..container import first_audio, opened
from ..unit import MetadataValue

SOUND_FIELD, SOUND_GROUP = "sound.flac", "sound"

Columns = Mapping[str, MetadataValue]


def write_clip_audio(
    path: str, spans: Sequence[tuple[Fraction, Fraction]], targets: Sequence[Path], rate_hz: int
) -> list[Columns]:
    """Write each span's audio to its target, if there is any, and return each span's columns.

    spans: [start, end) in s of the container's clock. One channel, mixed by ITU-R BS.775, lowered if it would clip.
    sound_missing_s: seconds of the span without audio in the source.

    Raises: Unusable; StoreError for a full disk.
    """
    rows: list[Columns] = [{"has_sound": False, "sound_missing_s": None} for _ in spans]
    with opened(path) as container:
        stream = first_audio(container)
        if stream is None:
            return rows
        order = sorted(range(len(spans)), key=lambda place: spans[place][0])
        timeline = AudioTimeline(container, stream, rate_hz)
        pieces = pieces_at(timeline, [spans[place] for place in order], rate_hz)
        for place, (samples, n_real) in zip(order, pieces, strict=True):
            if n_real:
                gain_db = write_flac(targets[place], samples, rate_hz)
                missing_s = (samples.shape[1] - n_real) / rate_hz
                rows[place] = {"has_sound": True, "sound_missing_s": missing_s, "sound_gain_db": gain_db}
        if timeline.mix is None:
            return rows
        whole: Columns = {"sound_downmix": timeline.mix.name, "mono_cancels": timeline.mono_sum.cancels()}
    return [{**columns, **whole} if columns["has_sound"] else columns for columns in rows]
