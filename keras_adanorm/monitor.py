"""What the norm correction did, step by step: a callback that works in anybody's `fit`."""

import numbers
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_adanorm.engine import monitored, precision

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

    Every optimizer of the model that keeps norms is watched: the compiled one, those inside a
    `LossScaleOptimizer` or a `MultiOptimizer`, and those that are attributes of the model, as in a
    GAN. Variables of other optimizers are left out.

    Each epoch adds three entries to `logs`, all means over variables and observed steps:

    - `corrections_fired`: the share of corrections that fired, between 0 and 1.
    - `gradient_norm`: the mean of `||g_t||`.
    - `corrected_gradient_norm`: the mean of `||s_t||`.

    They are NaN for an epoch of which no step was observed. Callbacks that write or read logs
    (`CSVLogger`, `TensorBoard`, `EarlyStopping`) see them wherever they stand in the list: when
    training begins, this callback goes to the front.

    Args:
        every: Positive integer. Observe only the steps whose number is a multiple of it; no
            other step is read, but for the one right before. Defaults to `1`, every step.
        per_step: Boolean. Also keep the norms of each observed step and variable, in
            `iterations`, `gradient_norms`, `corrected_gradient_norms` and `variable_names`.
            Takes 8 bytes per step and variable. Defaults to `False`.

    Attributes:
        history: Dictionary with one list per entry above, one value per epoch.
        iterations: Array of the observed steps' numbers, the first step of an optimizer being 1.
            Where several optimizers made a step in the same batch it is the largest.
        gradient_norms: Array `(steps, variables)` of `||g_t||`, NaN where the variable's optimizer
            made no step to be observed.
        corrected_gradient_norms: Array `(steps, variables)` of `||s_t||`.
        variable_names: Paths of the variables, in the order of the columns.

    Raises:
        ValueError: If `every` is not a positive integer. When training begins: if no optimizer
            keeps norms (wrapped in `AdaNorm(optimizer, gamma=0)` it trains as before, bit for
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

    def __init__(self, every: int = 1, per_step: bool = False) -> None:
        super().__init__()
        if isinstance(every, bool) or not isinstance(every, numbers.Integral) or every < 1:
            raise ValueError(
                f"Argument `every` must be a positive integer. Received: every={every}"
            )
        self.every = int(every)
        self.per_step = per_step
        self.history: dict[str, list[float]] = {name: [] for name in METRICS}
        self.variable_names: list[str] = []
        self._iterations = []
        self._gradient_norms = []
        self._corrected_norms = []

    @property
    def iterations(self) -> Any:
        return np.array(self._iterations, dtype="int64")

    @property
    def gradient_norms(self) -> Any:
        return self._table(self._gradient_norms)

    @property
    def corrected_gradient_norms(self) -> Any:
        return self._table(self._corrected_norms)

    def _table(self, rows):
        table = np.full((len(rows), len(self.variable_names)), np.nan, "float32")
        for i, row in enumerate(rows):  # an early row lacks the variables of a later optimizer
            table[i, : len(row)] = row
        return table

    def get_state(self) -> dict[str, Any]:
        """Returns what was kept per step, as arrays by name, for `set_state` to go on from."""
        return {
            "iterations": self.iterations,
            "variable_names": np.array(self.variable_names, dtype=str),
            "gradient_norms": self.gradient_norms,
            "corrected_gradient_norms": self.corrected_gradient_norms,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes up what `get_state` returned, as after an interrupted training."""
        self._iterations = state["iterations"].tolist()
        self.variable_names = state["variable_names"].tolist()
        self._gradient_norms = list(state["gradient_norms"])
        self._corrected_norms = list(state["corrected_gradient_norms"])

    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        if model.steps_per_execution != 1:
            raise ValueError(
                "GradientNormMonitor must see every step, so the model must be compiled with "
                "`steps_per_execution=1`. Received: "
                f"steps_per_execution={model.steps_per_execution}"
            )
        self._missed = False
        self._watched = []
        self._columns = {}
        self._watch(model, from_now=True)
        self._plan()
        monitored.put_first(self)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._samples = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches_to_skip -= 1
        if self._batches_to_skip >= 0:
            return
        observed = []
        for watched, (step, averages) in self._read():
            if step == watched.step + 1 and step % self.every == 0 and averages.size:
                observed.append((watched, step, watched.averages, averages))
            elif step > watched.step + 1 + self._skipped and not self._missed:
                self._missed = True
                warnings.warn(
                    f"GradientNormMonitor saw step {step} right after step {watched.step}: steps "
                    "that `fit` did not report are left out.",
                    stacklevel=2,
                )
            # An unchanged step number is a skipped or accumulated batch: no new gradient.
            watched.step, watched.averages = step, averages
        if observed:
            self._observe(observed)
        self._plan()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        means = np.mean(self._samples, axis=0) if self._samples else [np.nan] * len(METRICS)
        for name, value in zip(METRICS, means, strict=True):
            self.history[name].append(float(value))
            if logs is not None:
                logs[name] = float(value)

    def _watch(self, model, from_now):
        """Finds the optimizers that keep norms; raises if there is none and none can come."""
        optimizers = monitored.optimizers_of(model)
        watched = [each.optimizer for each in self._watched]
        for keeper in monitored.norm_keepers(optimizers):
            if not any(keeper is each for each in watched):
                self._watched.append(monitored.Watched(keeper, from_now))
        self._more_to_find = any(monitored.may_hold_more(each) for each in optimizers)
        if not self._watched and not self._more_to_find:
            monitored.refuse(optimizers)

    def _plan(self):
        # A sample needs the step before it as well. At most one step passes per batch.
        distances = [(self.every - 1 - each.step) % self.every or 1 for each in self._watched]
        self._skipped = self._batches_to_skip = min(distances, default=1) - 1

    def _read(self):
        model = self.model  # on JAX this brings the variables up to date
        if self._more_to_find:
            self._watch(model, from_now=False)
        return [(watched, watched.read()) for watched in self._watched]

    def _observe(self, observed):
        norms = [
            norms_between(
                before,
                after,
                precision.number(each.optimizer.gamma),
                precision.number(each.optimizer.max_correction),
            )
            for each, _, before, after in observed
        ]
        before, after, fired = (np.concatenate(parts) for parts in zip(*norms, strict=True))
        self._samples.append((np.mean(fired), np.mean(before), np.mean(after)))
        if not self.per_step:
            return
        columns = [column for each, *_ in observed for column in self._columns_of(each)]
        self._iterations.append(max(step for _, step, *_ in observed))
        for rows, values in ((self._gradient_norms, before), (self._corrected_norms, after)):
            row = np.full(len(self.variable_names), np.nan, "float32")
            row[columns] = values
            rows.append(row)

    def _columns_of(self, watched):
        """The positions of an optimizer's variables in `variable_names`, at its end if new."""
        key = id(watched)
        if key not in self._columns:
            taken = {column for columns in self._columns.values() for column in columns}
            free = {
                name: column
                for column, name in reversed(list(enumerate(self.variable_names)))
                if column not in taken
            }
            self._columns[key] = []
            for name in (variable.path for variable in watched.variables):
                if name not in free:
                    free[name] = len(self.variable_names)
                    self.variable_names.append(name)
                self._columns[key].append(free.pop(name))
        return self._columns[key]


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
