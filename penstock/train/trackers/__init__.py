"""Experiment trackers of a run: MLflow, W&B and TensorBoard."""
