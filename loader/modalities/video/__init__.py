"""Video frames by presentation time, and packet tables for reads of one range."""
