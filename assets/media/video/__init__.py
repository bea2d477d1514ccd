"""Videos: audit, timestamps, shots, spans and colours."""
