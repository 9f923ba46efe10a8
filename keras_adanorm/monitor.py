"""What the norm correction did, step by step: a callback that works in anybody's `fit`."""

import warnings

import keras
import numpy as np
from keras import ops

METRICS = ("corrections_fired", "gradient_norm", "corrected_gradient_norm")


class GradientNormMonitor(keras.callbacks.Callback):
    r"""Reports gradient norms before and after the correction, and how often it fired.

    An optimizer of this package keeps one average per variable,

        e_t = gamma * e_{t-1} + (1 - gamma) * ||g_t||

    so two of its values give back the norm of the gradient between them, and with it the norm of
    the corrected gradient:

        ||g_t|| = (e_t - gamma * e_{t-1}) / (1 - gamma)
        ||s_t|| = max(||g_t||, e_t)                  at most max_correction * ||g_t||

    The correction fired where `||s_t|| > ||g_t||`. Nothing is added to the training step: after
    a step the averages of all variables are read from the device in one go. The norms are those
    that the optimizer saw, so after clipping, loss scaling and gradient accumulation. A gradient
    below the rounding of `e_t` counts as zero, and a zero gradient as not corrected. Where a
    gradient is missing or not finite, `e_t` stays, which looks like a gradient of norm `e_t`.

    Each epoch adds three entries to `logs`, all means over variables and observed steps:

    - `corrections_fired`: the share of corrections that fired, between 0 and 1.
    - `gradient_norm`: the mean of `||g_t||`.
    - `corrected_gradient_norm`: the mean of `||s_t||`.

    They are NaN for an epoch of which no step was observed. Callbacks that write logs
    (`CSVLogger`, `TensorBoard`) see them if they stand behind this one in the list.

    Args:
        every: Positive integer. Observe only the steps whose number is a multiple of it; no
            other step is read, but for the one right before. Defaults to `1`, every step.
        per_step: Boolean. Also keep the norms of each observed step and variable, in
            `iterations`, `gradient_norms`, `corrected_gradient_norms` and `variable_names`.
            Takes 8 bytes per step and variable. Defaults to `False`.

    Attributes:
        history: Dictionary with one list per entry above, one value per epoch.
        iterations: Array of the observed steps' numbers, the first step of an optimizer being 1.
        gradient_norms: Array `(steps, variables)` of `||g_t||`.
        corrected_gradient_norms: Array `(steps, variables)` of `||s_t||`.
        variable_names: Paths of the variables, in the order of the columns.

    Raises:
        ValueError: If `every` is not a positive integer. When training begins: if the optimizer
            keeps no norms (wrapped in `AdaNorm(optimizer, gamma=0)` it trains as before, bit for
            bit, and keeps them), or if the model was compiled with `steps_per_execution` above 1,
            which hides the steps in between.

    Example:

    >>> import keras, numpy, keras_adanorm
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile(keras_adanorm.AdamNorm(0.01), loss="mse")
    >>> monitor = keras_adanorm.GradientNormMonitor()
    >>> x = numpy.random.default_rng(0).normal(size=(64, 4))
    >>> _ = model.fit(x, x[:, :1], epochs=2, callbacks=[monitor], verbose=0)
    >>> len(monitor.history["corrections_fired"])
    2

    Reference:
        Dubey et al., "AdaNorm: Adaptive Gradient Norm Correction based Optimizer for CNNs",
        WACV 2023, equations 3 and 4; its Figure 3 shows the mean gradient norm.
    """

    def __init__(self, every=1, per_step=False):
        super().__init__()
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(
                f"Argument `every` must be a positive integer. Received: every={every}"
            )
        self.every = every
        self.per_step = per_step
        self.history = {name: [] for name in METRICS}
        self.variable_names = []
        self._iterations = []
        self._gradient_norms = []
        self._corrected_norms = []

    @property
    def iterations(self):
        return np.array(self._iterations, dtype="int64")

    @property
    def gradient_norms(self):
        return self._table(self._gradient_norms)

    @property
    def corrected_gradient_norms(self):
        return self._table(self._corrected_norms)

    def _table(self, rows):
        return np.array(rows, dtype="float32").reshape(len(rows), len(self.variable_names))

    def get_state(self):
        """Returns what was kept per step, as arrays by name, for `set_state` to go on from."""
        return {
            "iterations": self.iterations,
            "variable_names": np.array(self.variable_names, dtype=str),
            "gradient_norms": self.gradient_norms,
            "corrected_gradient_norms": self.corrected_gradient_norms,
        }

    def set_state(self, state):
        """Takes up what `get_state` returned, as after an interrupted training."""
        self._iterations = state["iterations"].tolist()
        self.variable_names = state["variable_names"].tolist()
        self._gradient_norms = list(state["gradient_norms"])
        self._corrected_norms = list(state["corrected_gradient_norms"])

    def on_train_begin(self, logs=None):
        if self.model.steps_per_execution != 1:
            raise ValueError(
                "GradientNormMonitor must see every step, so the model must be compiled with "
                "`steps_per_execution=1`. Received: "
                f"steps_per_execution={self.model.steps_per_execution}"
            )
        self._missed = False
        # An optimizer that is not built yet starts from e_0 = 0.
        self._step, self._averages = self._read() if self._optimizer().built else (0, 0.0)
        self._plan()

    def on_epoch_begin(self, epoch, logs=None):
        self._samples = []

    def on_train_batch_end(self, batch, logs=None):
        self._batches_to_skip -= 1
        if self._batches_to_skip >= 0:
            return
        step, averages = self._read()
        if step == self._step + 1 and step % self.every == 0:
            self._observe(step, averages)
        elif step > self._step + 1 + self._skipped and not self._missed:
            self._missed = True
            warnings.warn(
                f"GradientNormMonitor saw step {step} right after step {self._step}: steps that "
                "`fit` did not report are left out.",
                stacklevel=2,
            )
        # An unchanged step number is a skipped or accumulated batch: there is no new gradient.
        self._step, self._averages = step, averages
        self._plan()

    def on_epoch_end(self, epoch, logs=None):
        means = np.mean(self._samples, axis=0) if self._samples else [np.nan] * len(METRICS)
        for name, value in zip(METRICS, means, strict=True):
            self.history[name].append(float(value))
            if logs is not None:
                logs[name] = float(value)

    def _plan(self):
        # A sample needs the step before it as well. At most one step passes per batch.
        distance = (self.every - 1 - self._step) % self.every or 1
        self._skipped = self._batches_to_skip = distance - 1

    def _optimizer(self):
        # On JAX, `self.model` brings the variables up to date before it hands out the model.
        return _with_norms(self.model.optimizer)

    def _read(self):
        optimizer = self._optimizer()
        averages = ops.stack([e for e in optimizer.norm_averages if e is not None])
        # The sum makes a number of a step counter that is mirrored on several devices, too.
        return int(ops.add(optimizer.iterations, 0)), ops.convert_to_numpy(averages)

    def _observe(self, step, averages):
        optimizer = self._optimizer()
        before, after, fired = norms_between(
            self._averages, averages, optimizer.gamma, getattr(optimizer, "max_correction", None)
        )
        self._samples.append((np.mean(fired), np.mean(before), np.mean(after)))
        if self.per_step:
            pairs = zip(optimizer.norm_averages, optimizer._trainable_variables, strict=True)
            self.variable_names = [v.path for e, v in pairs if e is not None]
            self._iterations.append(step)
            self._gradient_norms.append(before.astype("float32"))
            self._corrected_norms.append(after.astype("float32"))


def norms_between(previous, current, gamma, max_correction=None):
    """Gradient norms before and after the correction, from `e_{t-1}` and `e_t`.

    Args:
        previous: Float or array, `e_{t-1}`.
        current: Array, `e_t`, in the dtype in which the optimizer keeps it.
        gamma: Float in the range [0, 1), the average's decay.
        max_correction: Float of at least 1, the bound on `||s_t|| / ||g_t||`, or `None`.

    Returns:
        `(||g_t||, ||s_t||, fired)`, three arrays of the shape of `current`.
    """
    rounding = 4 * np.finfo(current.dtype).eps
    current = current.astype("float64")
    previous = np.broadcast_to(previous, current.shape).astype("float64")
    # What is left of a zero gradient is no more than the rounding of e_t.
    rise = current - gamma * previous
    before = np.where(rise > rounding * gamma * previous, rise, 0.0) / (1.0 - gamma)
    # The gradient lies below its new average just where that average fell.
    fired = (current < previous) & (before > 0) & (gamma > 0) & (max_correction != 1)
    after = np.where(fired, np.maximum(current, before), before)
    if max_correction is not None:
        after = np.minimum(after, max_correction * before)
    return before, after, fired


def _with_norms(optimizer):
    """The optimizer that keeps the norms: itself, or what a LossScaleOptimizer holds."""
    inner = optimizer
    while inner is not None and not hasattr(inner, "norm_averages"):
        inner = getattr(inner, "inner_optimizer", None)
    if inner is None:
        name = type(optimizer).__name__
        raise ValueError(
            "GradientNormMonitor needs an optimizer that keeps gradient norms. Wrap yours as "
            "`keras_adanorm.AdaNorm(optimizer, gamma=0)`, which equals it bit for bit and keeps "
            f"them. Received: optimizer={name}"
        )
    return inner
