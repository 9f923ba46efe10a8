"""The paper's augmentation, one batch at a time: pad, random crop, horizontal flip, normalise."""

import tensorflow as tf


def shift_and_flip(images, shifts, flips):
    """Moves every image of a batch by whole pixels, then mirrors the chosen ones.

    A crop of the original size out of an image padded by `p` zeros is the image moved by -p to p
    pixels, so one projective transform (nearest, zero fill) does pad, crop and flip for a batch.

    Args:
        images: tensor `(n, height, width, channels)`, uint8 or float.
        shifts: integer tensor `(n, 2)`, rows and columns: output pixel `(y, x)` shows input pixel
            `(y + shifts[:, 0], x + shifts[:, 1])`, or 0 where there is none.
        flips: bool tensor `(n,)`: which images are mirrored, left to right, after the shift.
    """
    height, width = images.shape[1:3]
    down, right = tf.unstack(tf.cast(shifts, tf.float32), axis=1)
    one, zero = tf.ones_like(right), tf.zeros_like(right)
    step = tf.where(flips, -one, one)
    start = tf.where(flips, right + (width - 1), right)
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=tf.stack([step, zero, start, zero, one, down, zero, zero], axis=1),
        output_shape=(height, width),
        fill_value=0.0,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )


def normalise(images, mean, std):
    """Turns uint8 images into float32 `(images / 255 - mean) / std`, channel by channel."""
    scale = tf.constant([1 / (255 * s) for s in std], tf.float32)
    offset = tf.constant([-m / s for m, s in zip(mean, std, strict=True)], tf.float32)
    return tf.cast(images, tf.float32) * scale + offset
