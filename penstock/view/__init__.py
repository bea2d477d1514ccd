"""The viewer for versions and training steps. It shows each sample as stored, as decoded and as trained."""
