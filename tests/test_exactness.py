"""The optimizers against the golden trajectories and the NumPy reference, states included."""

import keras
import numpy as np
import pytest

from keras_adanorm import (
    AdamNorm,
    Radam,
    RadamNorm,
)
from tests.support.golden_data import (
    FLOAT32_TOLERANCE,
    FLOAT64_TOLERANCE,
    GOLDEN_ALGORITHMS,
    SETTINGS,
    STEPS,
    TASKS,
    TENSORS,
    Golden,
    official_arguments,
)
from tests.support.optimizers import (
    BACKEND,
    CLASSES,
    NORM_CLASSES,
    Run,
    algorithm,
    assert_same_state,
    every_class,
    every_norm_class,
    floatx,
    run_beside_reference,
    swinging_gradients,
)
from tests.support.reference import Reference

TOLERANCES = {"float64": FLOAT64_TOLERANCE, "float32": FLOAT32_TOLERANCE}
# A moment that is carried through 30 steps in float32 is off by a few units in the last place.
RELATIVE_TOLERANCES = {"float64": 1e-12, "float32": 1e-5}

every_setting = pytest.mark.parametrize("setting", SETTINGS)
every_golden_class = pytest.mark.parametrize(
    "cls", [cls for cls in CLASSES if algorithm(cls) in GOLDEN_ALGORITHMS], ids=lambda c: c.__name__
)
every_dtype = pytest.mark.parametrize("dtype", TOLERANCES)


class GoldenRun:
    """Both golden tasks under one setting, as the four variables of one optimizer."""

    def __init__(self, setting):
        self.goldens = {task: Golden(task, setting) for task in TASKS}
        self.arguments = dict(SETTINGS[setting])
        self.names = [f"{task}_{tensor}" for task in TASKS for tensor in TENSORS]

    def by_name(self, of_golden):
        """Joins the dicts that the tasks give, with the task's name before each tensor's."""
        return {
            f"{task}_{tensor}": value
            for task, golden in self.goldens.items()
            for tensor, value in of_golden(task, golden).items()
        }

    @property
    def initial(self):
        return self.by_name(lambda task, golden: golden.initial)

    def gradients(self, t, params):
        def of_task(task, golden):
            return golden.gradients(t, {tensor: params[f"{task}_{tensor}"] for tensor in TENSORS})

        return self.by_name(of_task)

    def trajectory(self, source, name):
        return self.by_name(lambda task, golden: golden.trajectory(source, name))


def optimizer_for(cls, arguments):
    if cls not in NORM_CLASSES:
        arguments = {name: value for name, value in arguments.items() if name != "gamma"}
    return cls(**arguments)


def assert_follows_golden(cls, setting, source, name, dtype, **arguments):
    """Runs through a golden trajectory. Compares every weight, e_t and correction on its way."""
    golden = GoldenRun(setting)
    arguments = {**golden.arguments, **arguments}
    tolerance = TOLERANCES[dtype]
    trajectory = golden.trajectory(source, name)
    with floatx(dtype):
        run = Run(optimizer_for(cls, arguments), golden.initial, dtype)
        reference = Reference(algorithm(cls), golden.initial, **arguments)
        for t in range(1, STEPS + 1):
            gradients = golden.gradients(t, run.params)
            run.step(gradients)
            reference.step(golden.gradients(t, reference.params))
            for tensor, weight in run.params.items():
                assert weight.dtype == dtype
                np.testing.assert_allclose(
                    weight, trajectory[tensor][t], rtol=0, atol=tolerance, err_msg=f"t = {t}"
                )
            for tensor, e in run.e.items():
                np.testing.assert_allclose(e, reference.e[tensor], rtol=0, atol=tolerance)
                norm = np.linalg.norm(gradients[tensor].astype("float64"))
                if arguments["gamma"] > 0:  # with 0 they are equal, up to rounding
                    assert (e > norm) == (reference.e[tensor] > norm)
        assert_same_state(run, reference, tolerance, RELATIVE_TOLERANCES[dtype])


# Float32 rounds the same algorithm otherwise, whatever the setting.
settings_and_dtypes = pytest.mark.parametrize(
    ("setting", "dtype"), [*((setting, "float64") for setting in SETTINGS), ("default", "float32")]
)


@settings_and_dtypes
@every_golden_class
def test_paper(cls, setting, dtype):
    assert_follows_golden(cls, setting, "paper", algorithm(cls), dtype)


@pytest.mark.parametrize("source", ["paper", "official"])
@every_setting
def test_adam_is_adam_norm_without_gamma(setting, source):
    assert_follows_golden(AdamNorm, setting, source, "adam", "float64", gamma=0.0)


@settings_and_dtypes
@every_golden_class
def test_released_code(cls, setting, dtype):
    arguments = official_arguments(
        algorithm(cls), SETTINGS[setting]["beta_2"], SETTINGS[setting]["epsilon"]
    )
    assert_follows_golden(cls, setting, "official", algorithm(cls), dtype, **arguments)


SHAPES = {"matrix": (3, 4), "vector": (5,)}


def assert_follows_reference(optimizer, steps=10):
    random = np.random.default_rng(1)
    params = {name: random.standard_normal(shape) for name, shape in SHAPES.items()}
    fired = []
    with floatx("float64"):
        optimizer = type(optimizer).from_config(optimizer.get_config())
        stream = swinging_gradients(SHAPES, steps)
        for run, reference in run_beside_reference(optimizer, params, stream, "float64"):
            assert_same_state(run, reference, 1e-12, 1e-12)
            fired += reference.fired.values()
    return fired


OPTIONS = (
    {"corrected_moments": "first"},
    {"corrected_moments": "second"},
    {"corrected_moments": "both"},
    {"corrected_moments": "both", "max_correction": 1.5, "epsilon_root": 1e-3},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@every_norm_class
def test_options_of_the_correction(cls, options):
    fired = assert_follows_reference(cls(0.01, beta_2=0.8, **options))
    assert 0 < sum(fired) < len(fired)


@every_class
def test_epsilon_root(cls):
    assert_follows_reference(cls(0.01, beta_2=0.8, epsilon_root=0.1))


@every_class
def test_epsilon_hat(cls):
    assert_follows_reference(cls(0.01, beta_2=0.8, epsilon=0.1, epsilon_hat=True))


@pytest.mark.parametrize("cls", [Radam, RadamNorm])
def test_radam_has_epsilon_hat_either_way(cls):
    """The paper's Radam adds epsilon before the correction for bias in any case."""
    weights = []
    for epsilon_hat in (True, False):
        params = {name: np.ones(shape) for name, shape in SHAPES.items()}
        run = Run(cls(0.01, beta_2=0.8, epsilon=0.1, epsilon_hat=epsilon_hat), params)
        for grads in swinging_gradients(SHAPES, 8):
            run.step(grads)
        weights.append(run.params)
    for name in SHAPES:
        np.testing.assert_array_equal(weights[0][name], weights[1][name])


# How far 200 steps of Keras' Adam are from the same of `AdamNorm(gamma=0, epsilon_hat=True)`, in
# units of the learning rate. On TensorFlow Keras takes beta_1 and beta_2 through float32.
AS_KERAS_ADAM = {"float32": 1e-3, "float64": 1e-3 if BACKEND == "tensorflow" else 1e-11}


@every_dtype
@pytest.mark.parametrize("epsilon", [1e-7, 1e-2])
def test_without_gamma_as_keras_adam(dtype, epsilon):
    learning_rate, steps = 0.01, 200
    with floatx(dtype):
        params = {name: np.ones(shape) for name, shape in SHAPES.items()}
        ours = AdamNorm(learning_rate, epsilon=epsilon, gamma=0.0, epsilon_hat=True)
        keras_adam = keras.optimizers.Adam(learning_rate, epsilon=epsilon)
        runs = [Run(optimizer, params, dtype) for optimizer in (ours, keras_adam)]
        for grads in swinging_gradients(SHAPES, steps):
            for run in runs:
                run.step(grads)
        worst = max(np.abs(runs[0].params[n] - runs[1].params[n]).max() for n in SHAPES)
    assert worst <= AS_KERAS_ADAM[dtype] * learning_rate
