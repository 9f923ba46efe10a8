"""Search for the settings of an optimizer with keras-tuner: see README.md in this folder."""
