"""The first page: what needs attention, trainings and datasets."""
