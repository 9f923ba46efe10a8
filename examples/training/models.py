"""The paper's networks in their CIFAR form, and two small ones for a CPU.

VGG16 (Simonyan and Zisserman, 2015) and the ResNets (He et al., 2016) are written for 32x32 images,
as is usual for CIFAR: the ResNets have a 3x3 stem of stride 1 without pooling, and VGG16 ends in
one `Dense` layer. All of them average over the whole map before that layer, so that the number of
weights does not depend on the size of the image. Batch normalisation has momentum 0.9 (a running
mean keeps nine tenths of itself) and epsilon 1e-5.

Kernels start from the uniform distribution over -1/sqrt(fan_in) to 1/sqrt(fan_in), as in PyTorch,
which the paper used: the scale of the weights sets that of the gradients, whose norm the method
corrects. Biases start from 0.
"""

import random

import keras
from keras import layers

from examples.training import checks, recipes
from examples.training.checks import check_integer


class _Layers:
    """Layers with the settings that all models share, and a seed of its own for every kernel."""

    def __init__(self, seed):
        self._random = None if seed is None else random.Random(int(seed))

    def _kernel(self):
        seed = None if self._random is None else self._random.getrandbits(31)
        return keras.initializers.VarianceScaling(
            scale=1 / 3, mode="fan_in", distribution="uniform", seed=seed
        )

    def conv(self, x, filters, name, size=3, strides=1, use_bias=False, relu=True):
        """Convolution, batch normalisation and, unless told otherwise, ReLU."""
        x = layers.Conv2D(
            filters,
            size,
            strides=strides,
            padding="same",
            use_bias=use_bias,
            kernel_initializer=self._kernel(),
            name=f"{name}_conv",
        )(x)
        x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_bn")(x)
        return layers.ReLU(name=f"{name}_relu")(x) if relu else x

    def logits(self, x, num_classes):
        """Average over the map and a linear classifier, in float32 whatever the precision."""
        x = layers.GlobalAveragePooling2D(name="pool")(x)
        return layers.Dense(
            num_classes, kernel_initializer=self._kernel(), dtype="float32", name="logits"
        )(x)


def vgg16(num_classes, input_shape=(32, 32, 3), width=64, seed=None):
    """VGG16: 13 convolutions with bias in five blocks, each ended by a max-pool, and a `Dense`."""
    make = _Layers(seed)
    x = inputs = keras.Input(input_shape, name="image")
    for block, (depth, factor) in enumerate([(2, 1), (2, 2), (3, 4), (3, 8), (3, 8)], start=1):
        for i in range(1, depth + 1):
            x = make.conv(x, factor * width, f"block{block}_{i}", use_bias=True)
        x = layers.MaxPooling2D(name=f"block{block}_pool")(x)
    return keras.Model(inputs, make.logits(x, num_classes), name="vgg16")


def _basic(make, x, filters, strides, name):
    x = make.conv(x, filters, f"{name}_1", strides=strides)
    return make.conv(x, filters, f"{name}_2", relu=False)


def _bottleneck(make, x, filters, strides, name):
    x = make.conv(x, filters, f"{name}_1", size=1)
    x = make.conv(x, filters, f"{name}_2", strides=strides)
    return make.conv(x, 4 * filters, f"{name}_3", size=1, relu=False)


def _resnet(name, block, depths, num_classes, input_shape, width, seed):
    make = _Layers(seed)
    inputs = keras.Input(input_shape, name="image")
    x = make.conv(inputs, width, "stem")
    for stage, depth in enumerate(depths):
        for i in range(depth):
            here = f"stage{stage + 1}_{i + 1}"
            strides = 2 if stage > 0 and i == 0 else 1
            y = block(make, x, width * 2**stage, strides, here)
            if x.shape != y.shape:
                x = make.conv(x, y.shape[-1], f"{here}_skip", size=1, strides=strides, relu=False)
            x = layers.ReLU(name=f"{here}_relu")(layers.Add(name=f"{here}_add")([x, y]))
    return keras.Model(inputs, make.logits(x, num_classes), name=name)


def resnet18(num_classes, input_shape=(32, 32, 3), width=64, seed=None):
    """ResNet18: four stages of two basic blocks, strides 1, 2, 2, 2."""
    return _resnet("resnet18", _basic, (2, 2, 2, 2), num_classes, input_shape, width, seed)


def resnet50(num_classes, input_shape=(32, 32, 3), width=64, seed=None):
    """ResNet50: four stages of 3, 4, 6 and 3 bottleneck blocks, strides 1, 2, 2, 2."""
    return _resnet("resnet50", _bottleneck, (3, 4, 6, 3), num_classes, input_shape, width, seed)


def resnet8(num_classes, input_shape=(32, 32, 3), width=16, seed=None):
    """A ResNet for a CPU: three stages of one basic block, strides 1, 2, 2."""
    return _resnet("resnet8", _basic, (1, 1, 1), num_classes, input_shape, width, seed)


def cnn(num_classes, input_shape=(32, 32, 3), width=16, seed=None):
    """Three convolutions, strides 1, 2, 2: enough for the 8x8 digits."""
    make = _Layers(seed)
    inputs = keras.Input(input_shape, name="image")
    x = make.conv(inputs, width, "block1")
    x = make.conv(x, 2 * width, "block2", strides=2)
    x = make.conv(x, 4 * width, "block3", strides=2)
    return keras.Model(inputs, make.logits(x, num_classes), name="cnn")


MODELS = {name: globals()[name] for name in recipes.MODELS}


def build(name, num_classes, input_shape=(32, 32, 3), width=None, seed=None):
    """Builds a classifier by name.

    Args:
        name: one of `MODELS`.
        num_classes: positive integer, number of outputs.
        input_shape: height, width and channels of an image, positive integers. VGG16 halves an
            image five times and needs at least 32x32.
        width: positive integer, channels of the first stage; the others are multiples of it.
            Defaults to `None`: 64, or 16 for `"resnet8"` and `"cnn"`.
        seed: non-negative integer; the same one gives the same weights. Defaults to `None`: every
            call gives other weights, drawn from Keras' global random state.

    Returns:
        A functional `keras.Model` from images to logits. The logits are float32 under mixed
        precision too.

    Raises:
        ValueError: if an argument is not as said above.

    Example:

    >>> model = build("resnet8", num_classes=10)
    >>> model.output_shape, model.count_params()
    ((None, 10), 78714)
    """
    if name not in MODELS:
        raise checks.refused("name", f"one of {', '.join(MODELS)}", name)
    check_integer("num_classes", num_classes, 1)
    smallest = 32 if name == "vgg16" else 1
    if len(input_shape) != 3 or min(input_shape[:2]) < smallest or input_shape[2] < 1:
        raise ValueError(
            "Argument `input_shape` must be (height, width, channels), "
            f"for {name} of at least ({smallest}, {smallest}, 1). "
            f"Received: input_shape={tuple(input_shape)}"
        )
    if width is not None:
        check_integer("width", width, 1)
    if seed is not None:
        check_integer("seed", seed, 0)
    settings = {} if width is None else {"width": width}
    return MODELS[name](num_classes, tuple(input_shape), seed=seed, **settings)
