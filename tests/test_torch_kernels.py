"""torch's kernel for Adam is used where it can be, and where it can't the numbers are the same."""

import keras
import numpy as np
import pytest

from keras_adanorm import AdaBeliefNorm, AdamNorm, DiffGradNorm, Radam, RadamNorm
from keras_adanorm.engine import private
from tests.support.fast_paths import by_keras_own_way
from tests.support.optimizers import (
    BACKEND,
    NORM_CLASSES,
    Run,
    assert_bitwise_equal,
    assert_same_state,
    every_class,
    every_pair,
    swinging_gradients,
    to_numpy,
)

pytestmark = [
    pytest.mark.skipif(BACKEND != "torch", reason="a matter of torch"),
    pytest.mark.filterwarnings("ignore:__array__ implementation"),
]

SHAPES = {"matrix": (4, 6), "vector": (11,), "scalar": (), "empty": (0, 3)}
PARAMS = {name: np.ones(shape) for name, shape in SHAPES.items()}
TOLERANCE = {"float32": 3e-6, "float64": 1e-14}


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Sends variables of any size to the kernel, in parts; lists what it is given."""
    from keras_adanorm.engine import torch_groups, torch_kernels

    monkeypatch.setattr(torch_kernels, "SMALLEST", 0)
    monkeypatch.setattr(torch_groups, "part_size", lambda: 7)
    given, kernel = [], private.torch_adam()

    def counted(weights, gradients, *rest, **constants):
        given.extend(gradients)
        kernel(weights, gradients, *rest, **constants)

    monkeypatch.setattr(private, "torch_adam", lambda: counted)
    return given


def take(optimizer, gradients, dtype="float32", change=lambda variables: None):
    """Runs an optimizer; `change` may change the variables before the first step."""
    run = Run(optimizer, PARAMS, dtype)
    change(run.variables)
    for grads in gradients:
        if isinstance(grads, dict):
            run.step(grads)
        else:
            run.apply(grads(run))
    return run


def assert_same_as_own_way(cls, gradients, dtype="float32", change=lambda v: None, **arguments):
    """Returns the run that may have used the kernel."""
    runs = [
        take(make(0.01, **arguments), gradients, dtype, change)
        for make in (cls, by_keras_own_way(cls))
    ]
    tolerance = TOLERANCE.get(dtype, 1e-3)
    assert_same_state(*runs, atol=tolerance, rtol=tolerance)
    return runs[0]


# ------------------------------------------------------------ where it is used


@pytest.mark.parametrize("dtype", TOLERANCE)
@every_class
def test_every_variable_is_updated_by_the_kernel(cls, dtype, calls):
    assert_same_as_own_way(cls, swinging_gradients(SHAPES, 12), dtype)
    # What is corrected in parts of up to 7 elements.
    sizes = {7, 24 % 7, 11 % 7, 1} if cls in NORM_CLASSES else {1}
    assert {gradient.numel() for gradient in calls} >= sizes
    assert {str(gradient.dtype) for gradient in calls} == {f"torch.{dtype}"}


def test_all_that_is_not_corrected_in_one_call(calls, monkeypatch):
    counted, lengths = private.torch_adam(), []

    def kernel(weights, *rest, **constants):
        lengths.append(len(weights))
        counted(weights, *rest, **constants)

    monkeypatch.setattr(private, "torch_adam", lambda: kernel)
    take(AdamNorm(0.01, gamma=0.0), swinging_gradients(SHAPES, 3))
    assert lengths == [len(SHAPES)] * 3


def test_gradients_are_left_as_they_were():
    gradients = [keras.ops.convert_to_tensor(g) for g in swinging_gradients(SHAPES)[0].values()]
    before = [to_numpy(gradient) for gradient in gradients]
    for cls in (AdamNorm, RadamNorm, AdaBeliefNorm, DiffGradNorm):
        run = Run(cls(0.01, beta_2=0.8), PARAMS)
        for _ in range(8):
            run.apply(gradients)
    for gradient, value in zip(gradients, before, strict=True):
        np.testing.assert_array_equal(to_numpy(gradient), value)


@every_pair
def test_plain_bit_for_bit_with_gamma_0(norm_cls, plain_cls):
    gradients = swinging_gradients(SHAPES, 8)
    runs = [take(norm_cls(0.01, gamma=0.0), gradients), take(plain_cls(0.01), gradients)]
    assert_bitwise_equal(*runs)


def test_radam_that_is_not_adaptive_yet(calls):
    """The kernel has no step without the root of the second moment."""
    take(Radam(0.01), swinging_gradients(SHAPES, 5))
    assert not calls
    assert_same_as_own_way(Radam, swinging_gradients(SHAPES, 8))
    assert calls


# ------------------------------------------------------------ where it can't be used


@pytest.mark.parametrize(
    "arguments",
    [
        {"epsilon": 0.0},
        {"epsilon_root": 1e-8},
        {"beta_1": 0.3},
        {"corrected_moments": "both"},
        {"corrected_moments": "second"},
    ],
    ids=str,
)
@pytest.mark.parametrize("cls", [AdamNorm, RadamNorm, AdaBeliefNorm, DiffGradNorm])
def test_other_hyperparameters(cls, arguments, calls):
    gradients = swinging_gradients(SHAPES, 4)
    assert_same_as_own_way(cls, gradients, "float64", beta_2=0.8, **arguments)
    assert not calls


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_variables_of_half_a_word(dtype, calls):
    assert_same_as_own_way(AdamNorm, swinging_gradients(SHAPES, 3), dtype)
    assert not calls


def test_without_such_a_kernel(monkeypatch):
    monkeypatch.setattr(private, "torch_adam", lambda: None)
    assert_same_as_own_way(AdamNorm, swinging_gradients(SHAPES, 3))


def test_gradients_that_cannot_be_squared(calls):
    """An overflow stays out of the second moment, an Inf in its own variable."""
    gradients = swinging_gradients(SHAPES, 4)
    gradients[1]["vector"] = np.full(11, 1e30, "float32")
    gradients[2]["vector"] = np.full(11, -1e35, "float32")
    run = assert_same_as_own_way(AdamNorm, gradients)
    assert all(np.isfinite(value).all() for value in run.v.values())
    gradients[3]["vector"] = np.full(11, np.inf, "float32")
    with np.errstate(invalid="ignore"):
        run = assert_same_as_own_way(AdamNorm, gradients)
    assert np.isfinite(run.params["matrix"]).all()
    assert not np.isfinite(run.params["vector"]).any()
    assert calls


@pytest.mark.parametrize("cls", [AdaBeliefNorm])
def test_a_surprise_that_cannot_be_squared(cls):
    """The first moment is still large where the gradient is not."""
    gradients = [{name: np.full(s, size) for name, s in SHAPES.items()} for size in (1e35, 1.0)]
    run = assert_same_as_own_way(cls, gradients)
    assert all(np.isfinite(value).all() for value in run.v.values())


def test_what_the_kernel_trusts():
    """It looks at nothing itself, and would read and write past the end of a tensor."""
    import torch

    from keras_adanorm.engine import torch_kernels

    class Other(torch.Tensor):
        pass

    right = torch.ones(2, 3)
    assert torch_kernels.is_fit((right,) * 4)
    wrong = {
        "shape": torch.ones(2, 1),
        "dtype": torch.ones(2, 3, dtype=torch.float64),
        "order": torch.ones(3, 2).t(),
        "device": torch.ones(2, 3, device="meta"),
        "class": torch.ones(2, 3).as_subclass(Other),
    }
    for kind, tensor in wrong.items():
        for position in range(4):
            tensors = [right] * 4
            tensors[position] = tensor
            assert not torch_kernels.is_fit(tensors), (kind, position)
    optimizer = AdamNorm()
    assert torch_kernels.form_for(optimizer, [right, right]) is torch_kernels.adam
    assert torch_kernels.form_for(optimizer, [right, wrong["device"]]) is None


# ------------------------------------------------------------ memory as it comes


def transposed(shape, rng):
    """A tensor of a shape whose elements lie in another order."""
    import torch

    return torch.from_numpy(rng.standard_normal(shape[::-1]).astype("float32")).t()


def expanded(shape, rng):
    """One element, as a tensor of a shape."""
    import torch

    return torch.full((1, 1), float(rng.standard_normal())).expand(shape)


@pytest.mark.parametrize("make", [transposed, expanded])
@pytest.mark.parametrize("cls", [AdamNorm, RadamNorm, AdaBeliefNorm, DiffGradNorm])
def test_gradients_in_other_layouts(cls, make):
    rng = np.random.default_rng(0)
    gradients = [make((4, 6), rng) * size for size in (1.0, 3.0, 0.2, 0.05, 1.0, 0.1, 1.0)]
    params = {"matrix": np.ones((4, 6))}
    runs = [Run(c(0.01, beta_2=0.8), params) for c in (cls, by_keras_own_way(cls))]
    for run in runs:
        for gradient in gradients:
            run.apply([gradient])
    assert_same_state(*runs, atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("kernel_from", [0, 100])
@pytest.mark.parametrize("cls", [AdamNorm, RadamNorm, AdaBeliefNorm, DiffGradNorm])
def test_a_gradient_of_another_shape(cls, kernel_from, monkeypatch):
    """As in all operations of torch, it stands for one of the variable's shape."""
    import torch

    from keras_adanorm.engine import torch_kernels

    monkeypatch.setattr(torch_kernels, "SMALLEST", kernel_from)
    runs = [Run(cls(0.01, beta_2=0.8), {"matrix": np.ones((4, 6))}) for _ in range(2)]
    for size in (1.0, 3.0, 0.2, 0.05, 1.0, 0.1, 1.0):
        runs[0].apply([torch.full((1, 1), size)])
        runs[1].apply([torch.full((4, 6), size)])
    assert_bitwise_equal(*runs)
    with pytest.raises(RuntimeError, match="size"):
        runs[0].apply([torch.ones(4, 5)])


def in_another_order(tensor):
    """The tensor with the same values and shape, its elements in another order in memory."""
    axes = tuple(reversed(range(tensor.ndim)))
    return tensor.permute(axes).contiguous().permute(axes)


@pytest.mark.parametrize("which", ["weights", "state"])
@pytest.mark.parametrize("cls", [AdamNorm, RadamNorm, AdaBeliefNorm, DiffGradNorm])
def test_variables_in_other_layouts(cls, which):
    """As `channels_last` of torch lays out a kernel of a convolution."""
    params = {"kernel": np.random.default_rng(0).normal(size=(2, 3, 4, 5))}
    gradients = swinging_gradients({"kernel": (2, 3, 4, 5)}, 8)
    runs = [Run(c(0.01, beta_2=0.8), params) for c in (cls, by_keras_own_way(cls))]
    changed = runs[0].variables if which == "weights" else runs[0].optimizer.variables
    for variable in changed:
        if len(variable.shape) == 4:
            variable.value.data = in_another_order(variable.value.data)
            assert not variable.value.is_contiguous()
    for run in runs:
        for grads in gradients:
            run.step(grads)
    assert_same_state(*runs, atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("cls", [AdamNorm, RadamNorm, AdaBeliefNorm, DiffGradNorm])
def test_variables_that_share_memory(cls):
    """Tied weights: each is moved by its own gradient, from where the other has left it."""

    def tie(variables):
        import torch

        memory = torch.ones(48)
        variables[0].value.data = memory[:24].view(4, 6)
        variables[1].value.data = memory[10:21]

    assert_same_as_own_way(cls, swinging_gradients(SHAPES, 8), change=tie)


@pytest.mark.parametrize("kernel_from", [0, 100])
@pytest.mark.parametrize("cls", [AdamNorm, RadamNorm, AdaBeliefNorm, DiffGradNorm])
def test_gradients_that_lie_in_the_weights(cls, kernel_from, monkeypatch):
    """A penalty's gradient may be the weights themselves, or a part of other weights."""
    from keras_adanorm.engine import torch_kernels

    monkeypatch.setattr(torch_kernels, "SMALLEST", kernel_from)
    start = np.random.default_rng(0).normal(size=24).reshape(4, 6)
    runs = [Run(cls(0.01, beta_2=0.8), PARAMS | {"matrix": start}) for _ in range(2)]
    for _ in range(8):
        for run in runs:
            matrix, vector, _, _ = (variable.value.detach() for variable in run.variables)
            gradients = [matrix, matrix.view(-1)[5:16], vector[3], matrix[:0, :3]]
            run.apply([g.clone() for g in gradients] if run is runs[1] else gradients)
    assert_bitwise_equal(*runs)


# ------------------------------------------------------------ where torch computes nothing itself


@every_class
def test_variables_without_memory(cls, calls):
    """On torch's device `meta` shapes are all that there is."""
    import torch

    with keras.device("meta"):
        run = Run(cls(0.01), PARAMS)
        for _ in range(2):
            run.apply([torch.ones(shape, device="meta") for shape in SHAPES.values()])
    assert {variable.value.device.type for variable in run.variables} == {"meta"}
    assert not calls


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_a_step_that_torch_compiles(calls):
    import torch

    params, gradients = {"w": np.ones((4, 6))}, [torch.ones(4, 6), torch.full((4, 6), 0.1)]
    runs = [Run(AdamNorm(0.01), params) for _ in range(2)]
    apply = torch.compile(runs[0].apply, backend="eager")
    for gradient in gradients:
        apply([gradient])
    assert not calls
    for gradient in gradients:
        runs[1].apply([gradient])
    assert_same_state(*runs, atol=3e-6, rtol=3e-6)
