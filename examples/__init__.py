"""Runnable examples: the paper's models, data and training recipe."""
