"""Damaged media through the audit, the cutter and the loader's decoders, in real worker processes.

`python -m fuzz` (`make fuzz`) makes cases from small media of every kind, each from one number, and checks that

- no case kills the engine or exceeds its time limit;
- every case is admitted, rejected, dropped or a fault, with a reason; a Python exception is a bug;
- no file, open descriptor, thread or process remains;
- admitted media are plausible: their units match their facts, and ffprobe, if installed, agrees.

`--of formats` damages an object of a dataset in another format, and imports and registers it. Either there is a version
whose bytes are all readable, or a reason for each named object. Registered bytes equal the import's, and the source is
unchanged.

A case that breaks a promise is saved, and `--replay FILE` repeats it.
"""
