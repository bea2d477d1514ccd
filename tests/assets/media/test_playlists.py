"""Files that name other files: nothing but the object itself is opened, and nobody is asked for anything."""

import http.server
import threading
from pathlib import Path

import pytest

from assets.media.audit import audit
from assets.media.container import open_container
from assets.media.cut_audit import image
from assets.media.sniff import HEAD_BYTES, sniff
from assets.media.unit import Unusable

ID3 = b"ID3\x04\x00\x00\x00\x00\x00\x00"  # an empty tag, which FFmpeg skips before it asks what a file is
HLS = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{url}\n#EXT-X-ENDLIST\n"
CONCAT = "ffconcat version 1.0\nfile '{url}'\n"
SDP = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 96\n"
DASH = (
    '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
    'profiles="urn:mpeg:dash:profile:isoff-on-demand:2011" mediaPresentationDuration="PT1S"><Period>'
    '<AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1"><BaseURL>{url}</BaseURL>'
    "</Representation></AdaptationSet></Period></MPD>"
)
KINDS = {"hls": HLS, "concat": CONCAT, "sdp": SDP, "dash": DASH}


@pytest.fixture
def playlist_server():
    """A server, and the paths that it was asked for."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/x.ts", server.server_port, paths
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("tag", [b"", ID3], ids=["bare", "behind a tag"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["file", "http"])
def test_file_that_names_others_is_no_media(
    tmp_path: Path, encode_video, numbered_frames, playlist_server, kind: str, tag: bytes, where: str
) -> None:
    secret = tmp_path / "secret.ts"
    encoded = encode_video(numbered_frames(5, 64, 64), container="mpegts")
    secret.write_bytes(Path(encoded).read_bytes())
    url, port, paths = playlist_server
    for named in (str(secret), "secret.ts", f"file:{secret}") if where == "file" else (url,):
        text = KINDS[kind].format(url=named, port=port)
        path = tmp_path / "raw.mp4"
        path.write_bytes(tag + text.encode())
        with pytest.raises(Unusable):
            audit(str(path), sniff(path.read_bytes()[:HEAD_BYTES]))
        with pytest.raises(Unusable), open_container(str(path)):
            pass
        assert image._by_ffmpeg(str(path)) is None
    assert paths == []


def test_every_type_that_is_taken_has_a_demuxer_that_may_open_it() -> None:
    from av.format import ContainerFormat

    from assets.media.container import DEMUXERS

    found = {name for one in DEMUXERS for name in ContainerFormat(one, "r").name.split(",")}
    assert set(DEMUXERS) <= found
