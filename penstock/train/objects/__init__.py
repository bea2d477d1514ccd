"""Objects of a run's record that nothing of a training is needed to read."""
