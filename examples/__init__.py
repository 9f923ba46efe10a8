"""Runnable examples: train a network, draw a run, loops to copy; a study and benchmarks."""

from examples import interrupts

interrupts.handle(__name__)
