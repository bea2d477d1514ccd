"""The silent bugs in docs/media.md: the code stops objects by each name, and tests plant each bug."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from assets.media.audit import audit
from assets.media.unit import Unusable

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
TESTS = {
    ("alpha_on_black", "cut"): ("cut_audit/test_image.py::test_transparency_on_black",),
    ("aspect_ratio", "cut"): ("cut_audit/test_clips.py::test_pixel_aspect_ratio_ignored",),
    ("channel_lost", "cut"): ("cut_audit/test_audio.py::test_missing_channel_is_found",),
    ("colour_matrix", "cut"): ("cut_audit/test_clips.py::test_colour_matrix_tagged_wrong",),
    ("colour_range", "cut"): ("cut_audit/test_clips.py::test_colour_range_tagged_wrong",),
    ("colours_inverted", "cut"): ("cut_audit/test_image.py::test_colours_inverted",),
    ("corrupt", "source"): ("test_audit.py::test_damaged_slice_of_hevc_is_refused",),
    ("decoders_disagree", "cut"): ("cut_audit/test_disagreeing_decoders.py::test_refused_by_that_name",),
    ("deep_colour_key", "source"): ("image/test_depth.py::test_transparent_colour",),
    ("depth_saturated", "cut"): ("cut_audit/test_image.py::test_sixteen_bits_saturated",),
    ("downmix_clipped", "cut"): ("cut_audit/test_audio.py::test_mix_that_clips",),
    ("frames_missing", "cut"): ("cut_audit/test_clips.py::test_missing_frames_are_found",),
    ("hdr", "source"): (
        "image/test_colour.py::test_high_dynamic_range_is_dropped_and_not_squeezed",
        "test_audit.py::test_deep_colour_and_hdr_are_dropped",
    ),
    ("near_duplicates_across_splits", "version"): (
        "../dedup/test_check.py::test_copy_in_another_split_is_named",
    ),
    ("no_white", "source"): ("image/test_depth.py::test_numbers_without_a_white_are_dropped",),
    ("not_finite", "source"): ("audio/test_audit.py::test_samples_that_are_no_numbers_are_rejected",),
    ("rotation_ignored", "cut"): (
        "cut_audit/test_clips.py::test_rotation_ignored_in_a_square",
        "cut_audit/test_clips.py::test_rotation_and_mirrors_ignored",
        "cut_audit/test_clips.py::test_wrong_way_round",
        "cut_audit/test_image.py::test_orientation_ignored",
        "cut_audit/test_image.py::test_orientation_in_xmp_ignored",
    ),
    ("seek_ok", "source"): ("test_audit.py::test_audit_seeks_the_last_frame_and_the_longest_gap",),
    ("sound_length", "cut"): ("cut_audit/test_audio.py::test_sound_of_another_length",),
    ("sound_out_of_sync", "cut"): ("cut_audit/test_audio.py::test_sound_out_of_sync",),
    ("timestamps", "source"): ("audio/test_audit.py::test_timestamps_that_leave_most_out_are_rejected",),
    ("timestamps_not_source", "cut"): (
        "cut_audit/test_clips.py::test_times_that_are_not_the_sources",
        "cut_audit/test_clips.py::test_times_by_name",
    ),
    ("too_large", "source"): ("image/test_limits.py::test_bomb_of_pixels_is_refused_by_its_header",),
    ("too_many_scans", "source"): (
        "image/test_image.py::test_jpeg_of_endless_scans_is_refused_before_it_is_decoded",
    ),
    ("truncated", "source"): (
        "video/test_video.py::test_truncated_video_is_rejected_although_it_opens",
        "test_stated_sizes.py::test_sound_of_four_seconds_without_its_last_fifth_is_truncated",
        "audio/test_speech.py::test_sound_that_ends_before_its_header_says_is_rejected",
        "audio/test_audit.py::test_tail_of_a_quarter_second_is_missed",
    ),
    ("type_not_taken", "source"): ("test_sniff.py::test_name_plays_no_part",),
    ("undecodable", "source"): (
        "audio/test_audit.py::test_flipped_bit_in_flac_is_found",
        "test_silent_bugs.py::test_truncated_pictures_whatever_pillow_was_told",
        "image/test_image.py::test_damage_that_decoders_pass_over_is_refused",
    ),
    ("unknown_layout", "cut"): ("audio/test_speech.py::test_channels_without_places_are_dropped_by_name",),
    ("unreadable_clip", "cut"): (
        "video/test_reference_clip.py::test_clip_that_decodes_to_other_pixels_is_refused",
    ),
    ("vfr_as_cfr", "cut"): ("cut_audit/test_clips.py::test_variable_rate_stored_as_a_constant_one",),
    ("web_page", "source"): (
        "test_other_formats.py::test_page_or_an_archive_in_the_place_of_media_is_no_media",
    ),
    ("wrong_frame", "cut"): (
        "cut_audit/test_clips.py::test_dts_taken_for_pts",
        "cut_audit/test_clips.py::test_frame_beside_it",
    ),
}
"""(Name that stops an object, audit) -> tests that plant its bugs."""


def test_page_lists_exactly_the_tested_names() -> None:
    section = (REPOSITORY / "docs/media.md").read_text().split("\n## Silent bugs\n")[1].partition("\n## ")[0]
    lists = re.findall(r"\*\*(source|cut|version)\*\*[^*]+?\n\n((?:- .+\n(?:  .+\n)*)+)", section)
    assert [audit_of for audit_of, _ in lists] == ["source", "cut", "version"]
    rows = []
    for audit_of, bugs in lists:
        heads = re.findall(r"^- ((?:`[a-z_]+`(?:, )?)+): ", bugs, re.MULTILINE)
        assert len(heads) == bugs.count("\n- ") + 1
        names = [name for head in heads for name in re.findall(r"[a-z_]+", head)]
        assert names == sorted(names)
        rows += [(name, audit_of) for name in names]
    assert sorted(rows) == list(TESTS)
    assert len(rows) == section.count("\n- ") + 1 > 30  # `colour_matrix` shares a line with `colour_range`


@pytest.mark.parametrize(("name", "audit_of"), TESTS)
def test_name_is_in_the_code_and_its_tests_exist(name: str, audit_of: str) -> None:
    code = "".join(path.read_text() for path in (REPOSITORY / "assets").rglob("*.py"))
    assert re.search(rf"\b{name}\b", code)
    for test in TESTS[name, audit_of]:
        file, _, function = test.partition("::")
        assert f"def {function}(" in (HERE / file).read_text()


@pytest.mark.parametrize(("kind", "mime"), [("JPEG", "image/jpeg"), ("PNG", "image/png")])
def test_truncated_pictures_whatever_pillow_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mime: str
) -> None:
    """Many a library sets this switch for its whole process; grey halves then pass for pictures."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    sink = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(sink, kind)
    whole = tmp_path / "whole"
    whole.write_bytes(sink.getvalue())
    assert audit(str(whole), mime)["width_px"] == 64
    cut = tmp_path / "cut"
    cut.write_bytes(sink.getvalue()[: len(sink.getvalue()) // 2])
    with Image.open(cut) as picture:
        picture.load()  # Pillow has nothing to say
    with pytest.raises(Unusable) as refused:
        audit(str(cut), mime)
    assert (refused.value.outcome, refused.value.code) == ("rejected", "undecodable")
