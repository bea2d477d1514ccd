"""Audio on its timeline: decoding, downmix, resampling, padding."""
