"""Video frames by presentation time, and packet tables for reading single packets."""
