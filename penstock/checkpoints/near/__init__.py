"""Near saves: checkpoints on the disks of a training's nodes, between two checkpoints in its root."""
