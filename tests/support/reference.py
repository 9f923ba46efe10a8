"""The paper's eight algorithms in plain float64 NumPy, for the tests to compare with.

Dubey et al., "AdaNorm: Adaptive Gradient Norm Correction based Optimizer for CNNs", WACV 2023:
the two algorithms of the main text (Adam, AdamNorm) and the six of its supplement. Every line is
in the paper's order and uses its symbols; nothing here is tuned for speed or imports Keras.

One printed slip is mended: Radam's rectification has `1 - beta_2^t` where the paper prints
`1 - beta_2`.
"""

import math
from decimal import Decimal, localcontext

import numpy as np

PLAIN_ALGORITHMS = ("adam", "diffgrad", "radam", "adabelief")  # each is a method of `Reference`
ALGORITHMS = (*PLAIN_ALGORITHMS, *(f"{name}norm" for name in PLAIN_ALGORITHMS))


def one_minus_power(beta, t):
    """`1 - beta^t`, correct to the last digit of a double."""
    with localcontext() as context:
        context.prec = 60
        return float(1 - Decimal(float(beta)) ** int(t))


def rho(t, beta_2):
    """Radam's `rho_t = rho_inf - 2 t beta_2^t / (1 - beta_2^t)`, correct to a double's last digit.

    The two terms cancel where `t` is small against `1 / (1 - beta_2)`, hence the sixty digits.
    """
    with localcontext() as context:
        context.prec = 60
        t, beta_2 = int(t), Decimal(float(beta_2))
        rho_inf = 2 / (1 - beta_2) - 1
        return float(rho_inf - 2 * t * beta_2**t / (1 - beta_2**t))


def norm_correction(g, e, gamma, max_correction=None):
    """The paper's equations for `e_t` and `s_t`, for the gradient of one tensor.

    Returns `(s, e, fired)`: the corrected gradient, the new historical norm and whether they made
    a difference. A zero gradient has no direction to scale and stays zero while `e` decays; a
    gradient without a finite norm says nothing about the norm's history and leaves `e` as it was.
    """
    g_norm = math.hypot(*g.flat)
    if not math.isfinite(g_norm):
        return g, e, False
    e = gamma * e + (1 - gamma) * g_norm
    fired = e > g_norm > 0
    s = g
    if fired:
        s_norm = e if max_correction is None else min(e, max_correction * g_norm)
        s = s_norm * (g / g_norm)
    return s, e, fired


class Reference:
    """One of the eight algorithms, applied to a dict of named tensors.

    Args:
        algorithm: one of `ALGORITHMS`.
        params: dict of name to array, the starting weights. They are copied.
        learning_rate, beta_1, beta_2, epsilon, gamma: the paper's alpha, beta_1, beta_2, epsilon
            and gamma. `gamma` is unused by the four algorithms without the norm correction.
        corrected_moments: which moments see `s` instead of `g`: "first", "second" or "both".
        max_correction: upper bound of `e / ||g||`, or None.
        epsilon_root: added under the root, to the second moment that stands there.
        epsilon_hat: whether epsilon is added to the root of the second moment before its
            correction for bias.

    After each `step`, `params`, `m`, `v`, `e`, `fired` and (diffGrad only) `previous_gradient`
    hold the state by name, and `t` the number of steps. Arrays are replaced, never written to, so
    that they can be kept.

    Example:

    >>> reference = Reference("adamnorm", {"w": np.array([1.0])}, learning_rate=0.1)
    >>> reference.step({"w": np.array([2.0])})
    >>> reference.params["w"].round(6), round(reference.e["w"], 6)
    (array([0.9]), 0.1)
    """

    def __init__(
        self,
        algorithm,
        params,
        learning_rate=1e-3,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        gamma=0.95,
        corrected_moments="first",
        max_correction=None,
        epsilon_root=0.0,
        epsilon_hat=False,
    ):
        if algorithm not in ALGORITHMS:
            raise ValueError(f"`algorithm` must be one of {ALGORITHMS}. Received: {algorithm!r}")
        if corrected_moments not in ("first", "second", "both"):
            raise ValueError(
                "`corrected_moments` must be 'first', 'second' or 'both'. "
                f"Received: {corrected_moments!r}"
            )
        self.corrects_norm = algorithm.endswith("norm")
        self.base = algorithm.removesuffix("norm")
        self.learning_rate = learning_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.gamma = gamma
        self.corrected_moments = corrected_moments
        self.max_correction = max_correction
        self.epsilon_root = epsilon_root
        self.epsilon_hat = epsilon_hat

        self.t = 0
        self.params = {name: np.array(value, "float64") for name, value in params.items()}
        self.m = {name: np.zeros_like(value) for name, value in self.params.items()}
        self.v = {name: np.zeros_like(value) for name, value in self.params.items()}
        self.e = dict.fromkeys(self.params, 0.0)
        self.fired = dict.fromkeys(self.params, False)
        self.previous_gradient = {}
        if self.base == "diffgrad":
            self.previous_gradient = {n: np.zeros_like(value) for n, value in self.params.items()}

    def step(self, grads):
        """Take one step. A tensor whose gradient is missing or None is left as it is."""
        update = getattr(self, f"_{self.base}")
        self.t += 1
        for name in self.params:
            if grads.get(name) is None:
                continue
            g = np.array(grads[name], "float64")
            with np.errstate(all="ignore"):  # gradients may be infinite or not a number
                update(name, g, *self._gradients_of_the_moments(name, g))

    def _gradients_of_the_moments(self, name, g):
        """What takes the gradient's place in the first and in the second moment."""
        if not self.corrects_norm:
            return g, g
        s, self.e[name], self.fired[name] = norm_correction(
            g, self.e[name], self.gamma, self.max_correction
        )
        return {"first": (s, g), "second": (g, s), "both": (s, s)}[self.corrected_moments]

    def _epsilon(self):
        """What is added to the root of the corrected second moment."""
        if not self.epsilon_hat:
            return self.epsilon
        return self.epsilon / math.sqrt(one_minus_power(self.beta_2, self.t))

    def _adam(self, name, g, g_m, g_v):
        m = self.beta_1 * self.m[name] + (1 - self.beta_1) * g_m
        v = self.beta_2 * self.v[name] + (1 - self.beta_2) * g_v**2
        m_hat = m / one_minus_power(self.beta_1, self.t)
        v_hat = v / one_minus_power(self.beta_2, self.t)
        step = self.learning_rate * m_hat / (np.sqrt(v_hat + self.epsilon_root) + self._epsilon())
        self.m[name], self.v[name] = m, v
        self.params[name] = self.params[name] - step

    def _diffgrad(self, name, g, g_m, g_v):
        xi = 1 / (1 + np.exp(-np.abs(g - self.previous_gradient[name])))
        m = self.beta_1 * self.m[name] + (1 - self.beta_1) * g_m
        v = self.beta_2 * self.v[name] + (1 - self.beta_2) * g_v**2
        m_hat = m / one_minus_power(self.beta_1, self.t)
        v_hat = v / one_minus_power(self.beta_2, self.t)
        step = (
            self.learning_rate * xi * m_hat / (np.sqrt(v_hat + self.epsilon_root) + self._epsilon())
        )
        self.m[name], self.v[name], self.previous_gradient[name] = m, v, g
        self.params[name] = self.params[name] - step

    def _radam(self, name, g, g_m, g_v):
        m = self.beta_1 * self.m[name] + (1 - self.beta_1) * g_m
        v = self.beta_2 * self.v[name] + (1 - self.beta_2) * g_v**2
        rho_inf = 2 / (1 - self.beta_2) - 1
        rho_t = rho(self.t, self.beta_2)
        if rho_t >= 5:
            rho_u = (rho_t - 4) * (rho_t - 2) * rho_inf
            rho_d = (rho_inf - 4) * (rho_inf - 2) * rho_t
            rectification = np.sqrt(one_minus_power(self.beta_2, self.t) * rho_u / rho_d)
            alpha_1 = rectification * self.learning_rate / one_minus_power(self.beta_1, self.t)
            step = alpha_1 * m / (np.sqrt(v + self.epsilon_root) + self.epsilon)
        else:
            alpha_2 = self.learning_rate / one_minus_power(self.beta_1, self.t)
            step = alpha_2 * m
        self.m[name], self.v[name] = m, v
        self.params[name] = self.params[name] - step

    def _adabelief(self, name, g, g_m, g_v):
        m = self.beta_1 * self.m[name] + (1 - self.beta_1) * g_m
        v = self.beta_2 * self.v[name] + (1 - self.beta_2) * (g_v - m) ** 2
        m_hat = m / one_minus_power(self.beta_1, self.t)
        v_hat = v / one_minus_power(self.beta_2, self.t)
        step = self.learning_rate * m_hat / (np.sqrt(v_hat + self.epsilon_root) + self._epsilon())
        self.m[name], self.v[name] = m, v
        self.params[name] = self.params[name] - step
