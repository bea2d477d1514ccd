"""Media that somebody damaged, sent through the audit, the cutter and the loader's decoders, in real worker processes.

`python -m fuzz` (`make fuzz`) makes cases from small media of every kind, each case from one number, and holds what
comes of them against the promises:

- no case takes the engine with it, and none runs past its time limit;
- every case is admitted, rejected, dropped or a fault, with a reason; a Python exception is a bug;
- nothing is left behind: no file, no open descriptor, no thread, no process;
- what is admitted after the damage is plausible: its units say what they hold, and a tool that shares no code with
  ours reads the same file in the same way, where one is installed.

`--of formats` damages an object of a data set in another format, imports it, and registers it where that is possible:

- there is a version whose bytes are all read, or none and a reason, for each object that is named;
- registered bytes are those of the import, and the place itself is as it was.

A case that breaks a promise is saved, and `--replay FILE` runs it again.
"""
