"""The paper's augmentation, a batch at a time: pad, random crop, horizontal flip, normalise."""

import numpy as np
import tensorflow as tf


def epoch_plan(count, seed, epoch, max_shift, flip):
    """The order of one epoch's images and what is done to each: a function of seed and epoch only.

    Args:
        count: number of images.
        seed: integer.
        epoch: integer or integer tensor, so that a dataset can map over epochs.
        max_shift: integer; shifts are uniform over -max_shift to max_shift, rows and columns apart.
        flip: bool; whether half of the images, chosen at random, are mirrored.

    Returns:
        An int32 tensor `(count, 4)`, one row per image in the order of the epoch: its index, the
        shift in rows, the shift in columns, and whether it is mirrored (0 or 1).
    """
    # The type counts: another one would give other numbers.
    key = tf.random.fold_in(tf.constant([seed, 0], tf.int64), tf.cast(epoch, tf.int64))
    order_key, shift_key, flip_key = tf.unstack(tf.random.split(key, 3))
    order = tf.random.experimental.stateless_shuffle(tf.range(count), order_key)
    shifts = tf.random.stateless_uniform(
        (count, 2), shift_key, -max_shift, max_shift + 1, dtype=tf.int32
    )
    flips = tf.random.stateless_uniform((count, 1), flip_key, 0, 2 if flip else 1, dtype=tf.int32)
    return tf.concat([order[:, None], shifts, flips], axis=1)


def shift_and_flip(images, shifts, flips):
    """Moves every image of a batch by whole pixels, then mirrors some of them.

    Padding an image with `p` zeros and cropping it to its old size moves it by -p to p pixels, so
    one projective transform (nearest, zero fill) pads, crops and mirrors the whole batch.

    Args:
        images: tensor `(n, height, width, channels)`, uint8 or float.
        shifts: integer tensor `(n, 2)`, rows and columns. Pixel `(y, x)` of the moved image is
            pixel `(y + shifts[:, 0], x + shifts[:, 1])` of the old one, or 0 where there is none.
        flips: integer tensor `(n,)`, 1 where the moved image is mirrored left to right, else 0.
    """
    height, width = images.shape[1:3]
    down, right = tf.unstack(tf.cast(shifts, tf.float32), axis=1)
    flips = tf.cast(flips, tf.float32)
    one, zero = tf.ones_like(flips), tf.zeros_like(flips)
    # Output (x, y) reads input (step x + start, y + down).
    step = 1 - 2 * flips
    start = right + flips * (width - 1)
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=tf.stack([step, zero, start, zero, one, down, zero, zero], axis=1),
        output_shape=(height, width),
        fill_value=0.0,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )


def normalise(images, mean, std):
    """Turns uint8 images into float32 `(images / 255 - mean) / std`, channel by channel.

    Args:
        images: uint8 tensor `(n, height, width, channels)`.
        mean, std: one number per channel.
    """
    height, width, channels = images.shape[1:]
    # Broadcasting along rows of width * channels numbers took half the time that the last axis
    # with its three numbers took.
    scale = np.tile(1 / (255 * np.array(std)), width).astype("float32")
    offset = np.tile(-np.array(mean) / np.array(std), width).astype("float32")
    rows = tf.reshape(tf.cast(images, tf.float32), (-1, height, width * channels))
    return tf.reshape(rows * scale + offset, (-1, height, width, channels))
