"""The networks are the paper's: sizes, structure, and weights that follow from the seed."""

import keras
import numpy as np
import pytest

from examples.training import models

# Trainable parameters in the CIFAR form, by number of classes.
PARAMETERS = {
    "vgg16": {10: 14_728_266, 100: 14_774_436, 200: 14_825_736},
    "resnet18": {10: 11_173_962, 100: 11_220_132, 200: 11_271_432},
    "resnet50": {10: 23_520_842, 100: 23_705_252, 200: 23_910_152},
    "resnet8": {10: 78_042, 100: 83_892, 200: 90_392},
}


@pytest.fixture(scope="module")
def networks():
    """Every network at its own width, built once."""
    return {name: models.build(name, 10, seed=0) for name in models.MODELS}


def count(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


def layers(model, kind):
    return [layer for layer in model.layers if isinstance(layer, kind)]


def convolutions(model):
    return layers(model, keras.layers.Conv2D)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(networks, name):
    assert count(networks[name]) == PARAMETERS[name][10]


@pytest.mark.parametrize(("classes", "size"), [(100, 32), (200, 64)])
@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_with_more_classes_and_pixels(name, classes, size):
    model = models.build(name, classes, (size, size, 3))
    assert count(model) == PARAMETERS[name][classes]
    assert model.output_shape == (None, classes)


def test_vgg16_is_13_convolutions_with_bias_5_pools_and_one_dense(networks):
    kinds = [type(layer).__name__ for layer in networks["vgg16"].layers]
    unit = ["Conv2D", "BatchNormalization", "ReLU"]
    blocks = [part for depth in (2, 2, 3, 3, 3) for part in (*unit * depth, "MaxPooling2D")]
    assert kinds == ["InputLayer", *blocks, "GlobalAveragePooling2D", "Dense"]
    assert all(layer.use_bias for layer in convolutions(networks["vgg16"]))
    widths = [layer.filters for layer in convolutions(networks["vgg16"])]
    assert widths == [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6


@pytest.mark.parametrize(
    ("name", "convs", "sides", "channels"),
    [
        ("resnet18", 1 + 16 + 3, (32, 16, 8, 4), (64, 128, 256, 512)),
        ("resnet50", 1 + 48 + 4, (32, 16, 8, 4), (256, 512, 1024, 2048)),
        ("resnet8", 1 + 6 + 2, (32, 16, 8), (16, 32, 64)),
    ],
)
def test_resnets_have_a_plain_stem_and_halve_the_map_per_stage(
    networks, name, convs, sides, channels
):
    model = networks[name]
    stem = convolutions(model)[0]
    assert (stem.kernel_size, stem.strides) == ((3, 3), (1, 1))
    assert not layers(model, keras.layers.MaxPooling2D)
    assert not any(layer.use_bias for layer in convolutions(model))
    assert len(convolutions(model)) == convs
    ends = [
        [layer for layer in layers(model, keras.layers.Add) if f"stage{stage}_" in layer.name][-1]
        for stage in range(1, len(sides) + 1)
    ]
    expected = [(None, side, side, n) for side, n in zip(sides, channels, strict=True)]
    assert [end.output.shape for end in ends] == expected


def test_a_residual_block_adds_its_input(networks):
    model = keras.models.clone_model(networks["resnet8"])
    model.get_layer("stage1_1_2_bn").gamma.assign(np.zeros(16))  # the branch now gives 0
    outputs = [model.get_layer(name).output for name in ("stem_relu", "stage1_1_relu")]
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype("float32")
    stem, end = keras.Model(model.input, outputs)(images)
    np.testing.assert_array_equal(stem, end)
    assert np.any(stem)


@pytest.mark.parametrize("name", models.MODELS)
def test_batch_normalisation(networks, name):
    found = layers(networks[name], keras.layers.BatchNormalization)
    assert len(found) == len(convolutions(networks[name]))
    assert {(layer.momentum, layer.epsilon) for layer in found} == {(0.9, 1e-5)}


@pytest.mark.parametrize("name", ["vgg16", "resnet8", "cnn"])
def test_kernels_start_uniform_below_one_over_root_fan_in(networks, name):
    for layer in networks[name].layers:
        if hasattr(layer, "kernel"):
            kernel = np.asarray(layer.kernel)
            bound = np.prod(kernel.shape[:-1]) ** -0.5
            assert 0.95 * bound < np.abs(kernel).max() <= bound
            assert np.std(kernel) == pytest.approx(bound / 3**0.5, rel=0.1)


@pytest.mark.parametrize("name", models.MODELS)
def test_the_seed_gives_the_weights(name):
    def weights(seed):
        return models.build(name, 10, width=4, seed=seed).get_weights()

    keras.utils.set_random_seed(1)
    first = weights(3)
    keras.utils.set_random_seed(2)
    for a, b in zip(first, weights(3), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[0], weights(4)[0])
    kernels = [weight.ravel()[:9] for weight in first if weight.ndim == 4]
    assert len(np.unique(kernels, axis=0)) == len(kernels)


def test_without_a_seed_the_global_one_gives_the_weights():
    def kernel(seed):
        if seed is not None:
            keras.utils.set_random_seed(seed)
        return models.build("cnn", 10).get_weights()[0]

    first, second = kernel(1), kernel(None)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, kernel(1))


@pytest.mark.parametrize("name", models.MODELS)
def test_width_and_input_shape(name):
    shape = (32, 48, 1) if name == "vgg16" else (8, 8, 1)
    model = models.build(name, 7, shape, width=4)
    assert convolutions(model)[0].filters == 4
    assert model(np.zeros((2, *shape), "float32")).shape == (2, 7)


def test_logits_are_float32_under_mixed_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = models.build("resnet8", 10)
    finally:
        keras.config.set_dtype_policy("float32")
    assert convolutions(model)[0].compute_dtype == "bfloat16"
    assert keras.backend.standardize_dtype(model.output.dtype) == "float32"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "vgg"}, r"`name` must be one of vgg16, .*cnn. Received: name='vgg'"),
        ({"num_classes": 0}, "`num_classes` must be an integer of at least 1. Received"),
        ({"num_classes": 10.0}, "`num_classes` must be an integer"),
        ({"width": 0}, "`width` must be an integer of at least 1. Received: width=0"),
        ({"seed": -1}, "`seed` must be an integer of at least 0. Received: seed=-1"),
        ({"input_shape": (32, 32)}, r"`input_shape` must be \(height, width, channels\)"),
        ({"input_shape": (16, 16, 3)}, r"vgg16 of at least \(32, 32, 1\). Received"),
        ({"name": "cnn", "input_shape": (8, 8, 0)}, r"cnn of at least \(1, 1, 1\). Received"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.build(**{"name": "vgg16", "num_classes": 10, **arguments})
