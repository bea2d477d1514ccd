"""The viewer: versions and training steps, each sample as stored, as decoded and as trained."""
