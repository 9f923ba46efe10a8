"""What a run costs, computed where nothing was measured.

    seconds = 3 * multiply-adds of an image * images * epochs / rate

A training step takes about three times what the prediction takes: forwards, and backwards for the
inputs and for the weights. The rate is a declared one, `experiments.Scale.rate`, so that what
comes out is a guide to the hour and no measurement.
"""

import functools
import math

# Training images, height = width, channels and classes of a data set.
SHAPES = {
    "cifar10": (50_000, 32, 3, 10),
    "cifar100": (50_000, 32, 3, 100),
    "tiny_imagenet": (100_000, 64, 3, 200),
    "digits": (1_437, 8, 1, 10),
}


def seconds(settings, rate):
    """The computed seconds of a run at `rate` multiply-adds a second."""
    images = settings.train_size or SHAPES[settings.dataset][0]
    per_image = multiply_adds(settings.model, settings.width, settings.dataset)
    return 3 * per_image * images * settings.epochs / rate


def multiply_adds(model, width, dataset):
    """Multiply-adds of the convolutions and of the dense layer, to classify one image.

    >>> multiply_adds("cnn", 4, "digits")  # 8*8*9*1*4 + 4*4*9*4*8 + 2*2*9*8*16 + 16*10
    11680
    """
    _, side, channels, classes = SHAPES[dataset]
    convolutions, features = _counts(model, width, side, channels)
    return convolutions + features * classes


@functools.cache
def _counts(model, width, side, channels):
    """Multiply-adds of the convolutions, and the inputs of the dense layer behind them."""
    import keras

    from examples.training import models

    built = models.build(model, 1, (side, side, channels), width=width)
    convolutions = 0
    for layer in built.layers:
        if isinstance(layer, keras.layers.Conv2D):
            _, height, columns, _ = layer.output.shape
            convolutions += height * columns * math.prod(layer.kernel.shape)
    return convolutions, built.layers[-1].kernel.shape[0]
