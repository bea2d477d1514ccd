"""Audio: measured, resampled, cut into segments."""
