"""Values of a step as a training got them, made in this process or in that of the training's recipe."""
