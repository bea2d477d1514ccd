"""Post-training over penstock: a GRPO run on a CPU."""
