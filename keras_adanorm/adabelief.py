"""AdaBelief and AdaBeliefNorm (supplementary algorithms of the paper)."""

import keras

from keras_adanorm.base import AdaptiveOptimizer, NormCorrection


@keras.saving.register_keras_serializable(package="keras_adanorm")
class AdaBelief(AdaptiveOptimizer):
    """DOC"""

    def update_step(self, gradient, variable, learning_rate):
        """Updates a variable and its state."""
        step = self.begin_step(gradient, variable, learning_rate)
        s_m, s_v = self.moment_gradients(step)
        m = step.average("momentum", s_m, self.beta_1)
        v = step.average("velocity", step.square(s_v - m), self.beta_2)
        step.descend(step.learning_rate * self.adaptive_direction(step, m, v))


@keras.saving.register_keras_serializable(package="keras_adanorm")
class AdaBeliefNorm(NormCorrection, AdaBelief):
    """DOC"""
