"""Reports of trainings, and the quarantine lists made of them."""
