"""The comparison of units with their source, by other means than they were cut with.

The source is read again by a seek. Its samples are turned into colours by plain arithmetic instead of FFmpeg's or
Pillow's converters, and compared with the samples that a training job will decode. The comparison is coarse, so that
only meaning counts: which way is up, which frame, which colours, when, how loud. A difference has a name (`ROTATION`,
`COLOUR_RANGE` ...), and the object is rejected under it. So a bug here, in a policy or in a new release of a library
stops, and is told by its name.
"""
