"""Audio: audit, resampling and cutting into segments."""
