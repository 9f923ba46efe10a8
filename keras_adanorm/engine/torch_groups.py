"""torch."""

from keras_adanorm.engine import ways


def update_in_groups(optimizer, gradients, variables, learning_rate):
    """Updates the variables."""
    ways.one_by_one(optimizer, gradients, variables, learning_rate)
