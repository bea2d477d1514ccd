"""A training run for the viewer: its lines and its unusual steps."""
