"""Samples of a batch: joined from units and features, filtered, or quarantined later."""
