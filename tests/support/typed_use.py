"""What a user writes, for `mypy --strict` against the installed package."""

import keras_adanorm
from keras_adanorm import AdaNorm, GradientNormMonitor, NormCorrection, Step


class MomentumNorm(NormCorrection):
    slots = ("momentum",)
    elementwise = True

    def algorithm(self, step: Step) -> None:
        m = step.average("momentum", step.corrected_gradient, 0.9)
        step.descend(step.learning_rate * m)


optimizers = [keras_adanorm.AdamNorm(1e-3, gamma=0.9), MomentumNorm(0.1), AdaNorm("sgd", gamma=0.9)]
optimizers[0].exclude_from_norm_correction(var_names=["bias"])
monitor = GradientNormMonitor(every=2)
shares: list[float] = monitor.history["corrections_fired"]
config = optimizers[1].get_config()
s, e = keras_adanorm.correct_norm([3.0, 4.0], 0.0, gamma=0.9)
