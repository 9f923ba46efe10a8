"""Times updates of optimizers, `model.fit` and a copy in memory; what `step_time` records."""

import functools
import gc
import itertools
import json
import pathlib
import subprocess
import sys
import time

import keras
import numpy as np

from examples.benchmarks import accelerator
from examples.training import models
from keras_adanorm import registry

OPTIMIZERS = {
    "Adam": keras.optimizers.Adam,
    **registry.OPTIMIZERS,
    **{name: functools.partial(accelerator.make_optimizer, name) for name in accelerator.WRAPPERS},
}


def with_plain_loops(makers):
    """Optimizers by name, on torch with a plain loop more for each Norm variant."""
    if keras.backend.backend() != "torch":
        return makers
    from examples.benchmarks.plain_loops import LOOPS

    return {**makers, **{loop_of(name): loop for name, loop in LOOPS.items()}}


def loop_of(name):
    """The name of the row of a plain loop that does the same as an optimizer."""
    return f"{name}, a plain loop"


def model_shapes(name):
    """The shapes of a model's trainable variables."""
    model = models.build(name, 10)
    return [tuple(variable.shape) for variable in model.trainable_variables]


def equal_shapes(parameters, variables):
    """`variables` square matrices with `parameters` elements in all, as nearly as can be."""
    side = max(1, round((parameters / variables) ** 0.5))
    return [(side, side)] * variables


class Candidate:
    """An optimizer on variables of its own, ready to be called again and again."""

    def __init__(self, make_optimizer, shapes, gradients, mode):
        rng = np.random.default_rng(1)
        self.variables = [
            keras.Variable(0.05 * rng.standard_normal(shape, "float32"), name=f"w{i}")
            for i, shape in enumerate(shapes)
        ]
        self.optimizer = make_optimizer()
        self.optimizer.build(self.variables)
        start = time.perf_counter()
        self._update = self._updater(mode, gradients)
        self.run(1)
        self.seconds_to_first_update = time.perf_counter() - start
        self.run(1)

    def _updater(self, mode, gradients):
        if mode == "jit":
            return self._jax_updater(gradients)

        turns = itertools.cycle(gradients)
        if mode == "eager":
            return lambda: self.optimizer.apply(next(turns), self.variables)
        import tensorflow as tf

        tf.get_logger().setLevel("ERROR")  # every optimizer traces this function: no retracing

        @tf.function(jit_compile=mode == "xla", autograph=False)
        def compiled(gradients):
            self.optimizer.apply(gradients, self.variables)

        return lambda: compiled(next(turns))

    def _jax_updater(self, gradients):
        import jax

        # As Keras' trainer does it: what is donated comes back in the same order, and in place.
        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def step(variables, state, gradients):
            return self.optimizer.stateless_apply(state, gradients, variables)

        pending = tuple(
            [jax.numpy.copy(v.value) for v in variables]
            for variables in (self.variables, self.optimizer.variables)
        )
        self._lower = lambda: step.lower(*pending, gradients[0])
        turns = itertools.cycle(gradients)

        def update():
            nonlocal pending
            self._pending = pending = step(*pending, next(turns))

        return update

    def bytes_set_aside(self):
        """The bytes that a jitted update needs beside what it is given (JAX)."""
        memory = self._lower().compile().memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes

    def run(self, times):
        """Seconds that `times` updates take, waiting for the last."""
        start = time.perf_counter()
        for _ in range(times):
            self._update()
        self._wait()
        return time.perf_counter() - start

    def _wait(self):
        backend = keras.backend.backend()
        if backend == "jax":
            import jax

            jax.block_until_ready(self._pending)
        elif backend == "torch":
            import torch

            if torch.cuda.is_available():
                torch.cuda.synchronize()
        elif keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            if tf.config.list_physical_devices("GPU"):
                self.variables[-1].value[(0,) * len(self.variables[-1].shape)].numpy()


def make_gradients(shapes):
    """Two lists of gradients, for turns: in each turn half of the variables are corrected.

    What is a tenth as large as in the turn before is below the average of its norm.
    """
    rng = np.random.default_rng(0)
    large = [0.01 * rng.standard_normal(shape, "float32") for shape in shapes]
    return [
        [
            keras.ops.convert_to_tensor(g if (i + turn) % 2 else np.float32(0.1) * g)
            for i, g in enumerate(large)
        ]
        for turn in range(2)
    ]


def measure(makers, shapes, mode, rounds, seconds_per_round):
    """Times every optimizer of `makers` in interleaved rounds; a dict with one row for each."""
    gradients = make_gradients(shapes)
    candidates = {}
    for name, make in makers.items():
        candidates[name] = Candidate(make, shapes, gradients, mode)
        progress(f"  {mode}: {name} is ready")
    times = {}
    for name, candidate in candidates.items():
        once = candidate.run(2) / 2
        times[name] = max(1, min(200, int(seconds_per_round / once)))
    seconds = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            seconds[name].append(candidate.run(times[name]) / times[name])
    base = np.array(seconds[next(iter(seconds))])
    rows = {}
    for name, candidate in candidates.items():
        ratios = np.array(seconds[name]) / base
        rows[name] = {
            "milliseconds": quartiles(1e3 * np.array(seconds[name])),
            "ratio_to_adam": quartiles(ratios),
            "seconds_to_first_update": candidate.seconds_to_first_update,
        }
        if loop_of(name) in seconds:
            ratios = np.array(seconds[name]) / np.array(seconds[loop_of(name)])
            rows[name]["ratio_to_plain_loop"] = quartiles(ratios)
    del candidates, gradients
    gc.collect()
    return rows


def quartiles(values):
    """Median and quartiles as a record has them."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return {"median": float(median), "lower_quartile": float(low), "upper_quartile": float(high)}


def fit_times(rounds, steps=60):
    """Seconds per step of `model.fit`, where the update matters: many parameters, small batch."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4 * steps, 256), "float32")
    y = rng.integers(0, 10, 4 * steps)
    fits = {}
    for name in ("Adam", "AdamNorm"):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(1024, activation="relu") for _ in range(6)]
        model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(OPTIMIZERS[name](), loss)
        model.fit(x, y, batch_size=4, verbose=0)
        fits[name] = model
    seconds = {name: [] for name in fits}
    for _ in range(rounds):
        for name, model in fits.items():
            start = time.perf_counter()
            model.fit(x, y, batch_size=4, verbose=0)
            seconds[name].append((time.perf_counter() - start) / steps)
    ratios = np.array(seconds["AdamNorm"]) / np.array(seconds["Adam"])
    return {
        "parameters": fits["Adam"].count_params(),
        "batch_size": 4,
        "milliseconds": {name: quartiles(1e3 * np.array(s)) for name, s in seconds.items()},
        "ratio_to_adam": quartiles(ratios),
    }


def scaling(mode, rounds, parameters, variables, seconds_per_round):
    """Update times over the number of parameters and variables, with the cost fitted to each."""
    makers = {name: OPTIMIZERS[name] for name in ("Adam", "AdamNorm")}
    rows = []
    for size, count in [(size, 10) for size in parameters] + [(10**6, n) for n in variables]:
        progress(f"scaling: {size:.0e} parameters in {count} variables")
        shapes = equal_shapes(size, count)
        rows.append(
            {
                "parameters": int(sum(np.prod(shape) for shape in shapes)),
                "variables": count,
                "optimizers": measure(makers, shapes, mode, rounds, seconds_per_round),
            }
        )
    cost = {}
    for name in makers:
        size = np.array([[r["parameters"], r["variables"], 1.0] for r in rows])
        time_ = np.array([r["optimizers"][name]["milliseconds"]["median"] for r in rows]) / 1e3
        weight = 1 / time_  # a relative error counts the same at every size
        fitted = _nonnegative_least_squares(size * weight[:, None], time_ * weight)
        cost[name] = dict(
            zip(("nanoseconds_per_parameter", "microseconds_per_variable"), fitted, strict=False)
        )
        cost[name]["nanoseconds_per_parameter"] *= 1e9
        cost[name]["microseconds_per_variable"] *= 1e6
    return {"mode": mode, "rows": rows, "fitted_cost": cost}


def _nonnegative_least_squares(matrix, target):
    from scipy.optimize import nnls

    scale = np.linalg.norm(matrix, axis=0)
    return (nnls(matrix / scale, target)[0] / scale).tolist()


def memory_speed(megabytes, rounds):
    """Bytes read and written per second by a large copy, with NumPy on the host: the yardstick."""
    source = np.ones(megabytes * 2**18, "float32")
    target = np.empty_like(source)
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - start)
    return 2 * source.nbytes / float(np.median(seconds)) / 1e9


def state_and_peak(shapes, mode):
    """Bytes of the state, and how far an update raises the peak of the process' memory."""
    result = {}
    for name in OPTIMIZERS:
        code = (
            "from examples.benchmarks import updates; "
            f"updates.print_memory({name!r}, {shapes!r}, {mode!r})"
        )
        output = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        result[name] = json.loads(output.splitlines()[-1])
        progress(f"  memory, {mode}: {name}")
    return result


def print_memory(name, shapes, mode):
    """In a process of its own: prints the state's bytes and the peak of an update as JSON.

    The peak is how far ten updates raise the memory of the process. On JAX, whose threads change
    that by more than is to be seen, it is what the compiled update sets aside.
    """
    gradients = make_gradients(shapes)
    candidate = Candidate(OPTIMIZERS[name], shapes, gradients, mode)
    state = sum(int(np.prod(v.shape)) * 4 for v in candidate.optimizer.variables)
    scalars = sum(len(v.shape) == 0 for v in candidate.optimizer.variables)
    peak = candidate.bytes_set_aside() if mode == "jit" else _rise_of_memory(candidate)
    print(json.dumps({"state_bytes": state, "scalars": scalars, "update_bytes": peak}))


def _rise_of_memory(candidate):
    gc.collect()
    blocks = _fill_free_memory()
    before = _resident_bytes("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    candidate.run(10)
    rise = _resident_bytes("VmHWM") - before
    del blocks
    return rise


def _fill_free_memory(block=2**16, blocks=64):
    """Tensors that take up what the process has freed and kept, so that new memory is seen."""
    filled = []
    while True:
        before = _resident_bytes("VmRSS")
        filled += [keras.ops.zeros(block) + 1.0 for _ in range(blocks)]
        if _resident_bytes("VmRSS") - before > 0.9 * blocks * block * 4:
            return filled


def _resident_bytes(field):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def progress(text):
    print(text, file=sys.stderr, flush=True)
