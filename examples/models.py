"""The paper's networks in their CIFAR form, and two small ones for a CPU.

VGG16 (Simonyan and Zisserman, 2015) and the ResNets (He et al., 2016) are written for 32x32 images,
as is usual for CIFAR: the ResNets keep a 3x3 stem of stride 1 without pooling, and VGG16 has one
`Dense` layer behind a global average pool (at 32x32 the map is 1x1 by then, and at 64x64 the
number of parameters stays the same). Batch normalisation uses momentum 0.9 and epsilon 1e-5.

Kernels start from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), the default of the framework that the paper
used: a gradient's norm depends on the scale of the weights, so the start is part of the experiment.
"""

import random

import keras
from keras import layers


class _Layers:
    """The layers of one model: shared settings, and one seed per kernel drawn from `seed`."""

    def __init__(self, seed):
        self._random = None if seed is None else random.Random(seed)

    def _kernel(self):
        return keras.initializers.VarianceScaling(
            scale=1 / 3,
            mode="fan_in",
            distribution="uniform",
            seed=self._random and self._random.getrandbits(31),
        )

    def conv(self, x, filters, name, size=3, strides=1, use_bias=False, relu=True):
        """Convolution, batch normalisation and, unless told otherwise, a ReLU."""
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
        """Global average pool and the linear classifier, in float32 under mixed precision too."""
        x = layers.GlobalAveragePooling2D(name="pool")(x)
        return layers.Dense(
            num_classes, kernel_initializer=self._kernel(), dtype="float32", name="logits"
        )(x)


def _vgg16(make, x, num_classes, width):
    for block, (convs, factor) in enumerate([(2, 1), (2, 2), (3, 4), (3, 8), (3, 8)], start=1):
        for i in range(1, convs + 1):
            x = make.conv(x, factor * width, f"block{block}_{i}", use_bias=True)
        x = layers.MaxPooling2D(name=f"block{block}_pool")(x)
    return make.logits(x, num_classes)


def _basic_block(make, x, filters, strides, name):
    y = make.conv(x, filters, f"{name}_1", strides=strides)
    return filters, make.conv(y, filters, f"{name}_2", relu=False)


def _bottleneck_block(make, x, filters, strides, name):
    y = make.conv(x, filters, f"{name}_1", size=1)
    y = make.conv(y, filters, f"{name}_2", strides=strides)
    return 4 * filters, make.conv(y, 4 * filters, f"{name}_3", size=1, relu=False)


def _resnet(block, depths):
    def forward(make, x, num_classes, width):
        x = make.conv(x, width, "stem")
        for stage, depth in enumerate(depths):
            for i in range(depth):
                name = f"stage{stage + 1}_{i + 1}"
                strides = 2 if stage and not i else 1
                filters, y = block(make, x, width * 2**stage, strides, name)
                if strides != 1 or x.shape[-1] != filters:
                    x = make.conv(
                        x, filters, f"{name}_skip", size=1, strides=strides, relu=False
                    )
                x = layers.Add(name=f"{name}_add")([x, y])
                x = layers.ReLU(name=f"{name}_relu")(x)
        return make.logits(x, num_classes)

    return forward


def _cnn(make, x, num_classes, width):
    x = make.conv(x, width, "block1")
    x = make.conv(x, 2 * width, "block2", strides=2)
    x = make.conv(x, 4 * width, "block3", strides=2)
    return make.logits(x, num_classes)


# name: (forward function, default width, smallest side of the input)
MODELS = {
    "vgg16": (_vgg16, 64, 32),
    "resnet18": (_resnet(_basic_block, (2, 2, 2, 2)), 64, 1),
    "resnet50": (_resnet(_bottleneck_block, (3, 4, 6, 3)), 64, 1),
    "resnet8": (_resnet(_basic_block, (1, 1, 1)), 16, 1),
    "cnn": (_cnn, 16, 1),
}


def build(name, num_classes, input_shape=(32, 32, 3), width=None, seed=None):
    forward, default_width, _ = MODELS[name]
    inputs = keras.Input(input_shape, name="image")
    outputs = forward(_Layers(seed), inputs, num_classes, width or default_width)
    return keras.Model(inputs, outputs, name=name)
