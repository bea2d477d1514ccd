"""Damaged media, run through the audit, the cutter and the loader's decoders in real worker processes.

`python -m fuzz` (`make fuzz`) derives each case from one number, and checks that

- no case kills the engine or exceeds its time limit;
- every case is admitted, rejected, dropped or a fault, with a reason; a Python exception is a bug;
- no file, open descriptor, thread or process remains;
- admitted media are plausible, and ffprobe, if installed, agrees.

`--of formats` damages an object of a dataset in another format, then imports and registers it. Either all bytes of the
version are readable, or each bad object is named with a reason. `--replay FILE` repeats a saved case.
"""
