"""Audio on its timeline: decoding, downmixing, resampling, padding."""
