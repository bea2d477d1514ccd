"""Damaged media through the audit, the cutter and the loader's decoders, in real worker processes.

`python -m fuzz` (`make fuzz`) makes each case from one number, and checks that

- no case kills the engine or exceeds its time limit;
- every case is admitted, rejected, dropped or a fault, with a reason; a Python exception is a bug;
- no file, open descriptor, thread or process remains;
- admitted media are plausible, and ffprobe, if installed, agrees.

`--of formats` damages an object of a dataset in another format, imports and registers it. Either the version's bytes
are all readable, or each named object has a reason. `--replay FILE` repeats a saved case.
"""
