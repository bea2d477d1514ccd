"""Whether what was cut shows and sounds like its source, found out another way than it was cut.

The source is read again by a seek, its samples turned into colours by plain arithmetic instead of FFmpeg's or Pillow's
converters, and compared with what a training job will decode, coarsely, so that only meaning counts: which way is
up, which frame, which colours, when, how loud. What differs has a name (`ROTATION`, `COLOUR_RANGE` ...), and the object
is rejected under it: a bug here, in a policy or in a new release of a library stops, and is told by its name.
"""
