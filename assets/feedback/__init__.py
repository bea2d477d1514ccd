"""Training reports, exclusions and the quarantine."""
