"""Loads the golden trajectories of `tests/golden` (described in its README)."""

from pathlib import Path

import numpy as np

TASKS = ("fixed", "logreg")
SETTINGS = {
    "default": dict(learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-8, gamma=0.95),
    "alt": dict(learning_rate=0.003, beta_1=0.8, beta_2=0.99, epsilon=1e-7, gamma=0.9),
    "bigeps": dict(learning_rate=0.01, beta_1=0.9, beta_2=0.99, epsilon=1e-2, gamma=0.99),
}
STEPS = 30
TENSORS = ("a", "b")

FLOAT64_TOLERANCE = 1e-12
FLOAT32_TOLERANCE = 5e-6

_FOLDER = Path(__file__).parents[1] / "golden"


class Golden:
    """One task under one setting: what goes in, and what must come out.

    >>> golden = Golden("fixed", "alt")
    >>> golden.initial["a"].shape, golden.trajectory("paper", "adamnorm")["a"].shape
    ((4, 3), (31, 4, 3))
    """

    def __init__(self, task, setting):
        self.task = task
        self.setting = setting
        self.hyperparameters = dict(SETTINGS[setting])
        with np.load(_FOLDER / f"{task}_inputs.npz") as inputs:
            self._inputs = dict(inputs)
        with np.load(_FOLDER / f"golden_{task}_{setting}.npz") as outputs:
            self._outputs = dict(outputs)

    def __repr__(self):
        return f"{self.task}-{self.setting}"

    @property
    def initial(self):
        """The starting weights, as a dict of tensor name to array."""
        names = {"fixed": ("param_a", "param_b"), "logreg": ("w0", "b0")}[self.task]
        return {tensor: self._inputs[name] for tensor, name in zip(TENSORS, names, strict=True)}

    def gradients(self, t, params):
        """The gradients of step `t` (from 1) at the weights `params`, as a dict of arrays.

        The task "fixed" gives the same gradients whatever the weights; "logreg" gives those of
        the mean binary cross-entropy of its `t`-th mini-batch, with `a` the weight and `b` the
        bias.
        """
        if self.task == "fixed":
            return {"a": self._inputs["grads_a"][t - 1], "b": self._inputs["grads_b"][t - 1]}
        batch = self._inputs["batches"][t - 1]
        x, y = self._inputs["X"][batch], self._inputs["y"][batch]
        residual = 1 / (1 + np.exp(-(x @ params["a"] + params["b"]))) - y
        return {"a": x.T @ residual / len(batch), "b": residual.mean(axis=0)}

    def trajectory(self, source, algorithm):
        """The weights, as a dict of arrays: row 0 at the start, row `t` after step `t`."""
        return {tensor: self._outputs[f"{source}/{algorithm}/{tensor}"] for tensor in TENSORS}

    def e(self, algorithm):
        """The paper's `e_t`, as a dict of arrays: row `t - 1` after step `t`."""
        return dict(zip(TENSORS, self._outputs[f"paper_e/{algorithm}"].T, strict=True))

    def fired(self, algorithm):
        """Whether `e_t > ||g_t||`, as a dict of arrays: row `t - 1` at step `t`."""
        return dict(zip(TENSORS, self._outputs[f"paper_fired/{algorithm}"].T, strict=True))


def all_goldens():
    """Yields a `Golden` for each of the two tasks under each of the three settings."""
    for task in TASKS:
        for setting in SETTINGS:
            yield Golden(task, setting)


def official_arguments(algorithm, beta_2, epsilon):
    """The arguments, beyond a setting's own, with which the released PyTorch code is reproduced.

    They may override the setting's `gamma`.
    """
    has_inner_epsilon, arguments = _OFFICIAL[algorithm]
    inner_epsilon = {"epsilon_root": epsilon / (1 - beta_2)} if has_inner_epsilon else {}
    return {**inner_epsilon, **arguments}


# For each algorithm whether its released code adds epsilon under the root, and other arguments.
_OFFICIAL = {
    "adam": (False, {}),
    "adamnorm": (True, {}),
    "radam": (False, {}),
    "radamnorm": (False, {"gamma": 0.0}),
    "diffgrad": (False, {"epsilon_hat": True}),
    "diffgradnorm": (False, {"epsilon_hat": True}),
    "adabelief": (True, {}),
    "adabeliefnorm": (True, {"corrected_moments": "both"}),
}
# Those of the paper. A variant from elsewhere has no golden trajectory.
GOLDEN_ALGORITHMS = tuple(_OFFICIAL)
