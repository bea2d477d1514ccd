"""Values of a step as a training received them, made in this process or in the recipe's process."""
