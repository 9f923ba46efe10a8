"""Two small simulations of Adam and AdamNorm: the paper's Figure 1, and the regret of its theorem.

**Figure 1.** The paper draws three scenarios on a curve of one parameter, S1 to S3, and says what
the correction does there. Here the package's own optimizers, in float64, walk down a slope of 1
and then enter a flat region (S1), a steep one (S2) or a narrow valley (S3).

**Regret.** The theorem (section 3.2) bounds `R(T) = sum_t f_t(w_t) - min_w sum_t f_t(w)`, for
convex `f_t` on a bounded domain, `alpha_t = alpha / sqrt(t)`, `beta_{1,t} = beta_1 lambda^(t-1)`:

    R(T) <= D^2 / (2 alpha (1 - beta_1)) sum_i sqrt(T v_hat_{T,i})
          + alpha (1 + beta_1) G_inf^3 / ((1 - beta_1) sqrt(1 - beta_2) (1 - eta)^2 G^2)
            sum_i ||g_{1:T,i}||
          + sum_i D_inf^2 G_inf sqrt(1 - beta_2) / (2 alpha (1 - beta_1) (1 - lambda)^2)

with `eta = beta_1^2 / sqrt(beta_2)`, as the paper's supplement proves it. The main text prints
`(1 - gamma)^2` for `(1 - eta)^2`, which makes the bound larger; both are computed, on two streams:

- `quadratics`: `f_t(w) = ||w - z_t||^2 / 2` with random `z_t`, ten parameters in [-1, 1].
- `cycle`: `f_t(w) = 3 w` in every third step, else `-w`, one parameter in [-1, 1]; w = -1 is best.
  This is the example with which Reddi, Kale and Kumar ("On the Convergence of Adam and Beyond",
  ICLR 2018) showed that Adam's own theorem, whose proof this one follows, does not hold.

A package's optimizer has one `beta_1` for all steps and corrects with its power, so that the
optimizers are stated anew here, in NumPy; a test holds them against the package's.
"""

import functools
import math

import numpy as np

from examples.training import records

SCHEMA = 1
NAMES = {"Adam": 0.0, "AdamNorm": 0.95}  # the optimizers and their gamma
FIGURE1 = {"learning_rate": 0.01, "slope_steps": 100, "steps": 300}
REGRET = {
    "quadratics": {
        "alpha": 0.1,
        "beta_1": 0.9,
        "beta_2": 0.999,
        "lambda": 0.99,
        "dimensions": 10,
        "steps": 100_000,
        "repeats": 5,
    },
    "cycle": {
        "alpha": 0.1,
        "beta_1": 0.0,
        "beta_2": 0.1,
        "lambda": 0.5,
        "dimensions": 1,
        "steps": 400_000,
        "repeats": 1,
    },
}
EPSILON = 1e-8


def flat(distance):
    """S1: a slope of 0.01 behind the slope of 1."""
    return -0.01


def steep(distance):
    """S2: a slope of 100 behind the slope of 1."""
    return -100.0


def valley(distance):
    """S3: a parabola that goes on from the slope of 1 and has its minimum a little further."""
    return 50.0 * (distance - 0.02)


SCENARIOS = {"S1": flat, "S2": steep, "S3": valley}


def figure1(settings=FIGURE1):
    """Walks through the scenarios.

    Args:
        settings: Dictionary with `learning_rate`, `slope_steps` (steps on the slope of 1 before
            the scenario begins) and `steps` (steps in it).

    Returns:
        `{scenario: {optimizer: {"position": [...], "update": [...]}}}`, one value per step: where
        the step began, from the beginning of the scenario, and its length.
    """
    return {
        scenario: {name: _walk(gradient, gamma, **settings) for name, gamma in NAMES.items()}
        for scenario, gradient in SCENARIOS.items()
    }


def _walk(gradient, gamma, learning_rate, slope_steps, steps):
    import keras

    import keras_adanorm

    # On the slope a step is as long as the learning rate.
    start = -learning_rate * (slope_steps - 0.5)
    place = keras.Variable(np.array([start]), dtype="float64")
    optimizer = keras_adanorm.AdamNorm(learning_rate, gamma=gamma)
    optimizer.build([place])
    walk = {"position": [], "update": []}
    for _ in range(slope_steps + steps):
        before = float(keras.ops.convert_to_numpy(place)[0])
        slope = -1.0 if before < 0 else gradient(before)
        optimizer.apply([keras.ops.convert_to_tensor(np.array([slope]))], [place])
        after = float(keras.ops.convert_to_numpy(place)[0])
        walk["position"].append(before)
        walk["update"].append(abs(after - before))
    return walk


def descend(gradient, start, steps, gamma, alpha, beta_1, beta_2, decay, bound=1.0):
    """Adam (`gamma` 0) or AdamNorm on an online problem, in float64 and with projection.

        e_t = gamma e_{t-1} + (1 - gamma) ||g_t||,   s_t = max(1, e_t / ||g_t||) g_t
        m_t = beta_{1,t} m_{t-1} + (1 - beta_{1,t}) s_t,      beta_{1,t} = beta_1 decay^(t-1)
        v_t = beta_2 v_{t-1} + (1 - beta_2) g_t^2
        w_{t+1} = clip(w_t - alpha / sqrt(t) m_hat / (sqrt(v_hat) + epsilon), -bound, bound)

    Args:
        gradient: Function of the step, from 1, and `w_t`, an array `(repeats, dimensions)`.
        start: The first `w_t`.
        steps: Positive integer.
        gamma, alpha, beta_1, beta_2, decay: Floats, see above.
        bound: Positive float, half the side of the domain. Defaults to `1`.

    Yields:
        For every step `(w_t, g_t, v_hat)`.
    """
    w = np.array(start, "float64")
    m, v, e = np.zeros_like(w), np.zeros_like(w), np.zeros(len(w))
    for t in range(1, steps + 1):
        g = gradient(t, w)
        norm = np.sqrt((g * g).sum(-1))
        e = gamma * e + (1 - gamma) * norm
        # A zero gradient stays zero.
        s = g * np.maximum(1.0, e / np.where(norm > 0, norm, np.inf))[:, None]
        beta_1t = beta_1 * decay ** (t - 1)
        m = beta_1t * m + (1 - beta_1t) * s
        v = beta_2 * v + (1 - beta_2) * g * g
        v_hat = v / (1 - beta_2**t)
        yield w, g, v_hat
        step = alpha / math.sqrt(t) * m / (1 - beta_1**t) / (np.sqrt(v_hat) + EPSILON)
        w = np.clip(w - step, -bound, bound)


class Quadratics:
    """`f_t(w) = ||w - z_t||^2 / 2`, with `z_t` uniform in [-1, 1/2]^d. The mean of z is best."""

    def __init__(self, settings):
        random = np.random.default_rng(0)
        shape = (settings["steps"], settings["repeats"], settings["dimensions"])
        self._z = random.uniform(-1.0, 0.5, shape)

    def gradient(self, t, w):
        return w - self._z[t - 1]

    def loss(self, t, w):
        return 0.5 * ((w - self._z[t - 1]) ** 2).sum(-1)

    def best(self):
        """`min_w sum_{t <= T} f_t(w)` for every T, one row per T."""
        count = np.arange(1, len(self._z) + 1)[:, None]
        total = self._z.cumsum(0)
        squares = (self._z**2).sum(-1).cumsum(0)
        return 0.5 * (squares - (total**2).sum(-1) / count)


class Cycle:
    """`f_t(w) = 3 w` for t = 1, 4, 7, ..., else `-w`."""

    def __init__(self, settings):
        self._slopes = np.where(np.arange(settings["steps"]) % 3 == 0, 3.0, -1.0)

    def gradient(self, t, w):
        return np.full_like(w, self._slopes[t - 1])

    def loss(self, t, w):
        return self._slopes[t - 1] * w[:, 0]

    def best(self):
        """`min_w sum_{t <= T} f_t(w)` for every T: at an end of the domain."""
        return -np.abs(self._slopes.cumsum())[:, None]


STREAMS = {"quadratics": Quadratics, "cycle": Cycle}


def regret(settings=REGRET, points=60):
    """The average regret and the theorem's bound on it.

    The bound is computed with what was measured: G and G_inf are the largest norms of a gradient,
    `v_hat` and `g_{1:T}` those of the run; D and D_inf are the diameters of the domain. Of several
    repeats it is the largest.

    Args:
        settings: Dictionary of settings by stream, see `REGRET`.
        points: Positive integer, at how many T, evenly on a logarithmic scale, values are kept.

    Returns:
        `{stream: {optimizer: {"steps": [T], "regret": [[R(T) / T] per repeat], "bound": [...],
        "printed_bound": [...]}}}`: the bounds over T, that of the supplement and the main text's.
    """
    return {
        stream: {name: _regret(stream, gamma, chosen, points) for name, gamma in NAMES.items()}
        for stream, chosen in settings.items()
    }


def _regret(stream, gamma, settings, points):
    problem = STREAMS[stream](settings)
    steps, shape = settings["steps"], (settings["repeats"], settings["dimensions"])
    kept = np.unique(np.geomspace(1, steps, points).round().astype(int))
    losses, squares = np.empty((steps, shape[0])), np.zeros(shape)
    rooted, gradients, largest = {}, {}, (0.0, 0.0)
    walk = descend(
        problem.gradient,
        np.ones(shape),
        steps,
        gamma,
        *(settings[name] for name in ("alpha", "beta_1", "beta_2", "lambda")),
    )
    keep = set(kept.tolist())
    for t, (w, g, v_hat) in enumerate(walk, start=1):
        losses[t - 1] = problem.loss(t, w)
        squares += g * g
        largest = (
            max(largest[0], float(np.sqrt((g * g).sum(-1)).max())),
            max(largest[1], float(np.abs(g).max())),
        )
        if t in keep:
            rooted[t] = np.sqrt(t * v_hat).sum(-1).max()
            gradients[t] = np.sqrt(squares).sum(-1).max()
    total = losses.cumsum(0) - problem.best()
    eta = settings["beta_1"] ** 2 / math.sqrt(settings["beta_2"])
    return {
        "steps": kept.tolist(),
        "regret": (total[kept - 1] / kept[:, None]).T.tolist(),
        **{
            name: [
                _bound(settings, factor, *largest, rooted[t], gradients[t]) / t
                for t in kept.tolist()
            ]
            for name, factor in (("bound", eta), ("printed_bound", gamma))
        },
    }


def _bound(settings, eta, largest_norm, largest_entry, rooted, gradients):
    """The theorem's right-hand side."""
    alpha, beta_1, beta_2 = (settings[name] for name in ("alpha", "beta_1", "beta_2"))
    dimensions, widest = settings["dimensions"], 2.0  # D_inf, that of [-1, 1]
    first = dimensions * widest**2 / (2 * alpha * (1 - beta_1)) * rooted
    second = alpha * (1 + beta_1) * largest_entry**3 * gradients
    second /= (1 - beta_1) * math.sqrt(1 - beta_2) * (1 - eta) ** 2 * largest_norm**2
    third = dimensions * widest**2 * largest_entry * math.sqrt(1 - beta_2)
    third /= 2 * alpha * (1 - beta_1) * (1 - settings["lambda"]) ** 2
    return float(first + second + third)


SIMULATIONS = {"figure1": (figure1, FIGURE1), "regret": (regret, REGRET)}


def path(folder, name):
    """Where the record of a simulation stands."""
    return folder / "simulation" / f"{name}.json"


def record(name):
    """Runs a simulation and returns its record, a dictionary that JSON can hold."""
    function, settings = SIMULATIONS[name]
    return {
        "schema": SCHEMA,
        "settings": settings,
        "results": _rounded(function(settings)),
        "finished": records.now(),
        "commit": records.commit(),
        "versions": records.versions(),
    }


@functools.singledispatch
def _rounded(value):
    return value


@_rounded.register
def _(value: dict):
    return {name: _rounded(entry) for name, entry in value.items()}


@_rounded.register
def _(value: list):
    return [_rounded(entry) for entry in value]


@_rounded.register
def _(value: float):
    return float(f"{value:.5g}")
