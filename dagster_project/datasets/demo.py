"""The demo's dataset: photos, clips with audio, and speech, from the landing folder $PENSTOCK_LANDING."""

from typing import TYPE_CHECKING

from assets.checks import CheckResult, audio_rate
from assets.dedup.policy import NearDuplicates
from assets.gate_settings import SUITE, Gate
from assets.media.policy import CutPolicy, VideoPolicy
from assets.sources import BatchLimits
from assets.spec import DatasetSpec, Feature, Filter, Upkeep

if TYPE_CHECKING:
    import polars as pl

OWN_SPEECH = "/raw/speech"
"""Part of the address of each recording that the demo brings: in the folders speech and speech-2."""


def speech_rate(table: "pl.DataFrame", baseline: "pl.LazyFrame | None") -> CheckResult:
    """Check that speech is recorded at 16 kHz: anything else was resampled.

    It leaves out other audio than the demo's own: files of `make demo SOURCE=...` may have any rate.
    """
    is_speech = (table["kind"] == "audio") & table["raw_uri"].str.contains(OWN_SPEECH, literal=True)
    return audio_rate(table.filter(is_speech), declared_hz=(16_000,))


SPEC = DatasetSpec(
    name="demo",
    label_from="folder",
    policy=CutPolicy(video=VideoPolicy(clip_s=2.5, max_clips=8)),
    features=(
        Feature(name="picture"),
        Feature(name="phash"),
        Feature(name="appearance"),
        Feature(name="loudness"),
        Feature(name="tokens", parameters={"image": "caption.txt"}),
    ),
    filters=(Filter(column="black_ratio", maximum=0.9),),
    near_duplicates=NearDuplicates(max_distance=8, keep="better"),
    splits={"train": 0.9, "validation": 0.1},
    max_reject_rate=0.25,
    batch=BatchLimits(max_wait_s=0),  # show arrivals at once
    gate=Gate(suite=SUITE, checks={"audio_rate": speech_rate}),
    upkeep=Upkeep(owners=("team:demo",)),
)
