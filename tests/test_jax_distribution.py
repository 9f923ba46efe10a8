"""Several devices and several processes under `keras.distribution` train as one device does."""

import runpy
import socket

import numpy as np
import pytest

from tests.support.child import ROOT, output, run_module, start
from tests.support.coverage_table import SETUPS
from tests.support.optimizers import BACKEND, OLD_JAX

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(BACKEND != "jax", reason="needs JAX"),
    pytest.mark.filterwarnings("ignore:__array__ implementation"),
]

CLOSE = dict(rtol=2e-6, atol=3e-7)  # a few roundings of float32


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What `tests.support.jax_devices` wrote, a function of its name: arrays by name."""
    folder = tmp_path_factory.mktemp("devices")
    # Compiled quickly, and not for speed.
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    run_module("tests.support.jax_devices", folder, XLA_FLAGS=flags)

    def load(name):
        with np.load(folder / f"{name}.npz") as file:
            return dict(file)

    return load


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, **CLOSE, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("data", name) for name in SETUPS["data_parallel"].optimizers]
    + [
        pytest.param(
            "model",
            name,
            marks=pytest.mark.skipif(
                OLD_JAX and name == "DiffGradNorm",
                reason="JAX 0.4.34 sums a norm twice where weights are spread over devices",
            ),
        )
        for name in SETUPS["model_parallel"].optimizers
    ],
)
def test_four_devices_train_as_one(kind, name, trained):
    """Weights and state, the averages `e_t` included, which every device holds in full."""
    one, four = trained(f"{name}-one"), trained(f"{name}-{kind}")
    layouts, whole = four.pop("layouts"), four["whole"]
    # The count of steps, the learning rate and, in an optimizer with the correction, `e_t`.
    assert whole.sum() == (3 if name.endswith("Norm") else 2)
    assert (one.pop("layouts")[:, 0] == 1).all() and (layouts[:, 0] == 4).all()
    assert_close(four, one)
    replicated = np.ones_like(whole) if kind == "data" else whole
    np.testing.assert_array_equal(
        layouts[:, 1], replicated, "weights and their moments are spread, and nothing else is"
    )


@pytest.mark.parametrize("name", ["AdamNorm", "AdaNorm"])
def test_the_pure_update_is_traced_once(name, trained):
    """With weights spread over devices; without, see `test_execution_modes`."""
    assert trained(f"{name}-traces")["arr_0"] == 1


@pytest.mark.skipif(OLD_JAX, reason="JAX 0.4.34 runs several processes on GPUs and TPUs only")
def test_two_processes_train_as_one(tmp_path):
    program = ROOT / "examples" / "loops" / "jax_many_machines.py"
    (name,) = SETUPS["processes"].optimizers
    assert f"optimizer = {name}(" in program.read_text(encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [
        start(
            [program, tmp_path / f"{number}.npz"],
            KERAS_DISTRIBUTION_JOB_ADDRESSES=f"127.0.0.1:{port}",
            KERAS_DISTRIBUTION_NUM_PROCESSES="2",
            KERAS_DISTRIBUTION_PROCESS_ID=str(number),
        )
        for number in range(2)
    ]
    for number, process in enumerate(processes):
        assert f"process {number} of 2" in output(process)
    one = runpy.run_path(str(program))["train"]()
    for number in range(2):
        with np.load(tmp_path / f"{number}.npz") as file:
            assert_close(dict(file), {f"arr_{i}": value for i, value in enumerate(one)})
