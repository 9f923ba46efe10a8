"""Search for the settings of an optimizer with keras-tuner: see README.md in this folder."""

from examples import interrupts

interrupts.handle(__name__)
