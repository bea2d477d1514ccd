"""Videos read by their packets from S3: the requests, counted where they go out."""

import io
from fractions import Fraction

import av
import numpy as np
import pytest

import loader
from loader.modalities.video.packet_table import index_packets, read_packets
from loader.storage.cloud.store import RemoteStore

N = 3


def noise(seed):
    """An mp4 of 240 frames, 12 to a keyframe, about 1.5 MB: runs far apart do not share a request."""
    rng, file = np.random.default_rng(seed), io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        options = {"crf": "18", "g": "12", "bf": "0", "preset": "ultrafast"}
        stream = container.add_stream("libx264", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for _ in range(240):
            pixels = rng.integers(0, 256, (64, 96, 3)).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


@pytest.fixture
def plan_and_videos(s3):
    videos = {f"{i}": noise(i) for i in range(N)}
    with loader.Root("s3://bucket/videos", options=s3) as root:
        with root.write("clips", groups={"mp4.packets": "media_index"}) as writer:
            for key, data in videos.items():
                writer.add(key, {"mp4": data, "mp4.packets": index_packets(data)})
        yield loader.plan({"v": writer.version.select("mp4")}, seed=1, global_batch=N), videos


def test_one_request_for_the_tables_and_one_per_run(plan_and_videos, monkeypatch):
    plan, videos = plan_and_videos
    sent = []
    get_range = RemoteStore.get_range

    def record_range(self, key, offset, nbytes, etag=None):
        sent.append((key.rpartition("/")[2].partition("-")[0], nbytes))
        return get_range(self, key, offset, nbytes, etag)

    monkeypatch.setattr(RemoteStore, "get_range", record_range)
    tables = {key: read_packets(index_packets(data)) for key, data in videos.items()}
    for times, runs in (([50, 52, 57], [(48, 58)]), ([2, 100, 195], [(0, 3), (96, 101), (192, 196)])):
        decoder = loader.video(at=[Fraction(n, 25) for n in times])
        with loader.Loader(
            plan, 0, 1, decode={"mp4": decoder}, workers=0, framework="numpy", cache=0
        ) as batches:
            warm = batches.batch_at(0)  # opens the version and its indexes
            sent.clear()
            batch = batches.batch_at(1)
        media = sorted(nbytes for shard, nbytes in sent if shard == "media")
        wanted = [
            int(table.pos[stop - 1] + table.size[stop - 1] - table.pos[first])
            for table in tables.values()
            for first, stop in runs
        ]
        assert media == sorted(wanted)
        assert [shard for shard, _ in sent if shard != "media"] == ["media_index"]
        by_key = dict(zip([key for _, key in warm.ids], warm["mp4"], strict=True))
        for (_, key), clip in zip(batch.ids, batch["mp4"], strict=True):
            assert np.array_equal(clip, decoder(videos[key]))
            assert np.array_equal(clip, by_key[key])
