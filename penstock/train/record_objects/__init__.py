"""Objects of a run's record that can be read without the training's code."""
