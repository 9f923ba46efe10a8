"""The Norm variants as one may write them in torch: a loop over the variables, with no package.

A yardstick for what the updates cost on torch. One variable after the other is updated in place;
whether a gradient is corrected is asked of each, and all scalars are numbers of Python's. So does
the code that the authors of the paper have released.
"""

import math

import torch

LEARNING_RATE, BETA_1, BETA_2, EPSILON, GAMMA = 1e-3, 0.9, 0.999, 1e-8, 0.95


class AdamNormLoop:
    """AdamNorm, with what `updates.Candidate` needs of an optimizer."""

    def build(self, variables):
        """Makes the state of the variables, of Keras."""
        self._t = 0
        self._state = [
            {name: torch.zeros_like(v.value) for name in ("m", "v", "previous")} | {"e": 0.0}
            for v in variables
        ]

    def apply(self, gradients, variables):
        """Takes one step."""
        self._t += 1
        bias_1, bias_2 = 1 - BETA_1**self._t, 1 - BETA_2**self._t
        with torch.no_grad():
            for g, variable, state in zip(gradients, variables, self._state, strict=True):
                norm = torch.norm(g)
                state["e"] = GAMMA * state["e"] + (1 - GAMMA) * norm
                s = g * (state["e"] / norm) if state["e"] > norm else g
                self._update(variable.value, g, s, state, bias_1, bias_2)

    def _update(self, w, g, s, state, bias_1, bias_2):
        m, v = state["m"], state["v"]
        m.mul_(BETA_1).add_(s, alpha=1 - BETA_1)
        x = self._squared(g, m)
        v.mul_(BETA_2).addcmul_(x, x, value=1 - BETA_2)
        denominator = v.sqrt().add_(EPSILON * math.sqrt(bias_2))
        rate = LEARNING_RATE * math.sqrt(bias_2) / bias_1
        w.addcdiv_(self._numerator(g, m, state), denominator, value=-rate)

    def _squared(self, g, m):
        """What the second moment averages the square of."""
        return g

    def _numerator(self, g, m, state):
        return m


class AdaBeliefNormLoop(AdamNormLoop):
    """AdaBeliefNorm."""

    def _squared(self, g, m):
        return g - m


class DiffGradNormLoop(AdamNormLoop):
    """DiffGradNorm."""

    def _numerator(self, g, m, state):
        friction = torch.sigmoid(torch.abs(state["previous"] - g))
        state["previous"] = g.clone()
        return m * friction


class RadamNormLoop(AdamNormLoop):
    """RadamNorm."""

    def _update(self, w, g, s, state, bias_1, bias_2):
        m, v = state["m"], state["v"]
        m.mul_(BETA_1).add_(s, alpha=1 - BETA_1)
        v.mul_(BETA_2).addcmul_(g, g, value=1 - BETA_2)
        rate = LEARNING_RATE / bias_1
        limit = 2 / (1 - BETA_2) - 1
        length = limit - 2 * self._t * (1 - bias_2) / bias_2
        if length < 5:
            w.add_(m, alpha=-rate)
            return
        above = (length - 4) * (length - 2) * limit
        below = (limit - 4) * (limit - 2) * length
        rate *= math.sqrt(bias_2 * above / below)
        w.addcdiv_(m, v.sqrt().add_(EPSILON), value=-rate)


# By the name of the optimizer that does the same.
LOOPS = {
    "AdamNorm": AdamNormLoop,
    "DiffGradNorm": DiffGradNormLoop,
    "RadamNorm": RadamNormLoop,
    "AdaBeliefNorm": AdaBeliefNormLoop,
}
