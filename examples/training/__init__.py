"""What every run of the examples shares: networks, data, the recipe, checkpoints, records."""
