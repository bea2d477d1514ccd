"""Programs that use penstock: a training, the demo, and the fetching of its media."""
