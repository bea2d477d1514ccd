"""The main job, end to end, on real media: `python -m examples.demo`."""
