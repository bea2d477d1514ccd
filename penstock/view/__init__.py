"""The viewer shows versions and training steps: each sample as stored, decoded and trained."""
