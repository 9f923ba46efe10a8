"""What a user writes, for `mypy --strict` against the installed package."""

import keras_adanorm
from keras_adanorm import AdaNorm, GradientNormMonitor, NormCorrection, Step


class MomentumNorm(NormCorrection):
    slots = ("momentum",)
    elementwise = True

    def algorithm(self, step: Step) -> None:
        m = step.average("momentum", step.corrected_gradient, 0.9)
        step.descend(step.learning_rate * m)


adam_norm = keras_adanorm.AdamNorm(1e-3, gamma=0.9, epsilon_hat=True)
adam_norm.exclude_from_norm_correction(var_names=["bias"])
config = MomentumNorm(0.1, gamma=0.9).get_config()
averages = AdaNorm("sgd", gamma=0.9).norm_averages
monitor = GradientNormMonitor(every=2)
shares: list[float] = monitor.history["corrections_fired"]
s, e = keras_adanorm.correct_norm([3.0, 4.0], 0.0, gamma=0.9)
