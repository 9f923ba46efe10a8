"""diffGrad and diffGradNorm (supplementary algorithms of the paper)."""

import keras

from keras_adanorm.base import AdaptiveOptimizer, NormCorrection


@keras.saving.register_keras_serializable(package="keras_adanorm")
class DiffGrad(AdaptiveOptimizer):
    """DOC"""

    slots = ("momentum", "velocity", "previous_gradient")

    def update_step(self, gradient, variable, learning_rate):
        """Updates a variable and its state."""
        step = self.begin_step(gradient, variable, learning_rate)
        g = step.gradient
        # The friction xi_t: 1/2 where the gradient stands still, near 1 where it changes much.
        friction = step.ops.sigmoid(step.ops.abs(g - step.read("previous_gradient")))
        step.write("previous_gradient", g)
        s_m, s_v = self.moment_gradients(step)
        m = step.average("momentum", s_m, self.beta_1)
        v = step.average("velocity", step.square(s_v), self.beta_2)
        step.descend(step.learning_rate * friction * self.adaptive_direction(step, m, v))


@keras.saving.register_keras_serializable(package="keras_adanorm")
class DiffGradNorm(NormCorrection, DiffGrad):
    """DOC"""
