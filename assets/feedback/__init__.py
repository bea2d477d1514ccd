"""Reports of trainings, exclusions and the quarantine."""
