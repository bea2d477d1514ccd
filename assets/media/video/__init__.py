"""Videos: audit, timestamps, shots, spans, and the colours of their clips."""
