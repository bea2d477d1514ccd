"""The parts of `examples.rl.arithmetic`: sums as a task, a small transformer, its samplers and its trainer."""
