"""Sound: measured, brought to a rate and channels, cut into segments."""
