"""AdamNorm: Adam with the norm-corrected gradient (Algorithm 2 of the paper)."""

import keras

from keras_adanorm.base import NormCorrection


@keras.saving.register_keras_serializable(package="keras_adanorm")
class AdamNorm(NormCorrection):
    """DOC"""

    def update_step(self, gradient, variable, learning_rate):
        """Updates a variable and its state."""
        step = self.begin_step(gradient, variable, learning_rate)
        s_m, s_v = self.moment_gradients(step)  # s_t and g_t, unless `corrected_moments` says else
        m = step.average("momentum", s_m, self.beta_1)
        v = step.average("velocity", step.square(s_v), self.beta_2)
        step.descend(step.learning_rate * self.adaptive_direction(step, m, v))
