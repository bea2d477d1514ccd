"""A dataset, a featurizer, a model, a network, a modality and a store of your own (docs/extending.md)."""
