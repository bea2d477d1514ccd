"""webdataset beside our code: writes the files of a folder into tar archives, or prints the samples of archives.

python webdataset_peer.py write FOLDER TARGET     archives of at most 20 samples
python webdataset_peer.py read ARCHIVE ...        a line of JSON for each sample: field -> bytes as hex
"""

import json
import sys
from pathlib import Path

import webdataset


def write(folder, target):
    Path(target).mkdir(parents=True)
    files = sorted(Path(folder).iterdir())
    with webdataset.ShardWriter(f"{target}/%04d.tar", maxcount=20, verbose=0) as writer:
        for stem in sorted({file.stem for file in files}):
            fields = {file.suffix[1:]: file.read_bytes() for file in files if file.stem == stem}
            writer.write({"__key__": stem, **fields})


def read(*archives):
    for sample in webdataset.WebDataset(list(archives), shardshuffle=False):
        print(
            json.dumps(
                {k: v.hex() if isinstance(v, bytes) else v for k, v in sample.items() if k != "__url__"}
            )
        )


{"write": write, "read": read}[sys.argv[1]](*sys.argv[2:])
