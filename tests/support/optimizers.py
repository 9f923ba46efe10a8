"""The classes under test, and how to step through one of them in each execution mode."""

import contextlib
from importlib import metadata

import keras
import numpy as np
import pytest
from packaging.version import Version

from keras_adanorm.engine import private
from keras_adanorm.registry import NORM_VARIANTS, OPTIMIZERS, PLAIN_OPTIMIZERS
from keras_adanorm.registry import PLAIN_OF as ALL_PAIRS
from tests.support.reference import Reference

NORM_CLASSES = NORM_VARIANTS
PLAIN_CLASSES = PLAIN_OPTIMIZERS
CLASSES = tuple(OPTIMIZERS.values())
# Those whose plain optimizer is of this package and equals them bit for bit with `gamma=0`.
PLAIN_OF = {norm: plain for norm, plain in ALL_PAIRS.items() if plain in PLAIN_CLASSES}

BACKEND = keras.backend.backend()
KERAS = tuple(int(part) for part in keras.version().split(".")[:2])
OLD_JAX = BACKEND == "jax" and Version(metadata.version("jax")) < Version("0.5")
OLD_TORCH = BACKEND == "torch" and Version(metadata.version("torch")) < Version("2.5")
# How a training loop may run the update. In the first a few steps are quickest to test.
MODES = {
    "tensorflow": ("eager", "graph", "xla"),
    "jax": ("eager", "jit"),
    "torch": ("eager",),
}[BACKEND]


def _ids(value):
    return value.__name__ if isinstance(value, type) else None


every_class = pytest.mark.parametrize("cls", CLASSES, ids=_ids)
every_norm_class = pytest.mark.parametrize("cls", NORM_CLASSES, ids=_ids)
every_plain_class = pytest.mark.parametrize("cls", PLAIN_CLASSES, ids=_ids)
every_pair = pytest.mark.parametrize(("norm_cls", "plain_cls"), PLAIN_OF.items(), ids=_ids)
every_mode = pytest.mark.parametrize("mode", MODES)
tensorflow_only = pytest.mark.skipif(BACKEND != "tensorflow", reason="needs TensorFlow")


def algorithm(cls):
    """The name of a class in `tests.support.reference`."""
    return cls.__name__.lower()


@contextlib.contextmanager
def floatx(dtype):
    """A context with this `floatx`, in which JAX has 64 bits if it is float64."""
    before = keras.config.floatx()
    with contextlib.ExitStack() as stack:
        if BACKEND == "jax" and dtype == "float64":
            stack.enter_context(private.jax_in_64_bits())
        keras.config.set_floatx(dtype)
        try:
            yield
        finally:
            keras.config.set_floatx(before)


def to_numpy(tensor):
    """A tensor or variable as an array; bfloat16, which NumPy lacks, as float32."""
    tensor = keras.ops.convert_to_tensor(tensor)
    if keras.backend.standardize_dtype(tensor.dtype) == "bfloat16":
        tensor = keras.ops.cast(tensor, "float32")
    if BACKEND == "torch":
        tensor = tensor.detach().cpu()
    # Not `ops.convert_to_numpy`, in which each call warns of a detail of NumPy 2.
    return np.array(tensor) if BACKEND == "jax" else np.array(tensor.numpy())


class Run:
    """An optimizer with variables of its own, stepped in one execution mode.

    Args:
        optimizer: A new optimizer. It is built here.
        params: Dict of name to array, the starting weights.
        dtype: The dtype of the variables, or a dict of name to dtype.
        mode: One of `MODES`.
        prepare: Function of the optimizer and the variables, called before it is built.

    Example:

    >>> from keras_adanorm import AdamNorm
    >>> run = Run(AdamNorm(0.1), {"w": np.ones(2)})
    >>> run.step({"w": np.array([1.0, 2.0])})
    >>> run.params["w"].round(6), f"{run.e['w']:.6f}"
    (array([0.9, 0.9], dtype=float32), '0.111803')
    """

    def __init__(self, optimizer, params, dtype="float32", mode=MODES[0], prepare=None):
        self.optimizer = optimizer
        self.mode = mode
        self.names = list(params)
        dtypes = dtype if isinstance(dtype, dict) else dict.fromkeys(params, dtype)
        self.variables = [
            keras.Variable(np.asarray(value), dtype=dtypes[name], name=name)
            for name, value in params.items()
        ]
        if prepare is not None:
            prepare(optimizer, self.variables)
        optimizer.build(self.variables)
        self._apply = self._compiled_apply()
        self.traces = 0

    def step(self, grads):
        """Takes one step: `grads` is a dict of name to array, rounded to the variable's dtype."""
        named = zip(self.names, self.variables, strict=True)
        self.apply([keras.ops.convert_to_tensor(grads[name], v.dtype) for name, v in named])

    def apply(self, gradients):
        """Takes one step with a list of tensors, one per variable."""
        self._apply(gradients)

    def _compiled_apply(self):
        if BACKEND == "jax" and self.mode == "jit":
            return self._jit_apply()
        if BACKEND == "tensorflow" and self.mode in ("graph", "xla"):
            import tensorflow as tf

            return tf.function(self._traced_apply, jit_compile=self.mode == "xla" or None)
        return self._traced_apply

    def _traced_apply(self, gradients):
        self.traces += 1
        self.optimizer.apply(gradients, self.variables)

    def _jit_apply(self):
        import jax

        @jax.jit
        def update(optimizer_values, gradients, values):
            self.traces += 1
            return self.optimizer.stateless_apply(optimizer_values, gradients, values)

        def apply(gradients):
            state = self.optimizer.variables
            values, state_values = update(
                [v.value for v in state], gradients, [v.value for v in self.variables]
            )
            for variable, value in zip(self.variables + state, values + state_values, strict=True):
                variable.assign(value)

        return apply

    @property
    def params(self):
        """The weights, by name."""
        return self._by_name(self.variables)

    @property
    def m(self):
        """The first moments, by name."""
        return self._slot("momentum")

    @property
    def v(self):
        """The second moments, by name."""
        return self._slot("velocity")

    @property
    def previous_gradient(self):
        """The previous gradients, by name; empty where the algorithm keeps none."""
        return self._slot("previous_gradient")

    @property
    def e(self):
        """The average norms, by name; empty where the algorithm keeps none."""
        return self._by_name(getattr(self.optimizer, "norm_averages", []))

    @property
    def state(self):
        """All state by kind and name, the weights included."""
        kinds = ("params", "m", "v", "previous_gradient", "e")
        return {kind: getattr(self, kind) for kind in kinds}

    def _slot(self, kind):
        # State is laid out kind by kind, the vector of the averages last.
        slots, n = self.optimizer.slots, len(self.variables)
        end = len(self.optimizer.variables) - bool(self.e)
        start = end - n * len(slots)
        if kind not in slots:
            return {}
        first = start + slots.index(kind)
        return self._by_name(self.optimizer.variables[first : end : len(slots)])

    def _by_name(self, variables):
        return {n: to_numpy(v) for n, v in zip(self.names, variables, strict=False)}


def run_beside_reference(optimizer, params, gradients, dtype="float32", mode=MODES[0]):
    """Steps an optimizer and the NumPy reference through the same gradients.

    Yields the pair after each step: `(run, reference)`.
    """
    config = optimizer.get_config()
    accepted = ("beta_1", "beta_2", "epsilon", "epsilon_root", "epsilon_hat")
    accepted += ("gamma", "corrected_moments", "max_correction")
    arguments = {name: config[name] for name in accepted if name in config}
    run = Run(optimizer, params, dtype, mode)
    rounded = {name: np.asarray(value, "float64") for name, value in run.params.items()}
    learning_rate = float(to_numpy(optimizer.learning_rate))
    reference = Reference(
        algorithm(type(optimizer)), rounded, learning_rate=learning_rate, **arguments
    )
    for grads in gradients:
        run.step(grads)
        reference.step(grads)
        yield run, reference


def assert_same_state(run, reference, atol=0.0, rtol=0.0):
    """Compares weights and all state of a run with those of another or of the reference."""
    for kind, values in run.state.items():
        for name, value in values.items():
            np.testing.assert_allclose(
                value, getattr(reference, kind)[name], rtol, atol, err_msg=f"{kind} of {name}"
            )


def assert_bitwise_equal(run, other, kinds=("params", "m", "v", "previous_gradient")):
    """Compares state to the last bit."""
    for kind in kinds:
        values, others = getattr(run, kind), getattr(other, kind)
        assert values.keys() == others.keys()
        for name in values:
            np.testing.assert_array_equal(values[name], others[name], f"{kind} of {name}")


def assert_finite(run):
    """Checks that weights and all state are finite."""
    for kind, values in run.state.items():
        for name, value in values.items():
            assert np.isfinite(value).all(), f"{kind} of {name}: {value}"


def swinging_gradients(shapes, steps=12, seed=0):
    """A list of dicts of gradients whose size swings: the correction fires on some steps only."""
    random = np.random.default_rng(seed)
    scales = np.tile([1.0, 3.0, 0.2, 0.05, 2.0, 0.01], steps)[:steps]

    def draw(shape, scale):
        return scale * np.asarray(random.standard_normal(shape), "float32")

    return [{name: draw(shape, scale) for name, shape in shapes.items()} for scale in scales]
