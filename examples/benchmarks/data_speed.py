"""Measures our batched augmentation against a `map` of tf.image functions over single images.

    python -m examples.benchmarks.data_speed --out examples/benchmarks/results/data_speed.json

Both shuffle uint8 images that lie in memory, pad, crop, flip and normalise them, and prefetch.
They take turns, so that whatever else the machine does meets both; a round is one epoch of each.
"""

import argparse
import json
import statistics
import time

import numpy as np
import tensorflow as tf

from examples.training import data, records
from examples.training.checks import check_integer

SOURCE = data.Source(read=None)


def per_image(pixels, labels, batch_size):
    """The paper's augmentation written with tf.image, one image at a time."""
    height, width, channels = pixels.shape[1:]
    pad = SOURCE.max_shift

    def augment(image, label):
        image = tf.pad(image, [(pad, pad), (pad, pad), (0, 0)])
        image = tf.image.random_crop(image, (height, width, channels))
        image = tf.image.random_flip_left_right(image)
        return (tf.image.convert_image_dtype(image, tf.float32) - SOURCE.mean) / SOURCE.std, label

    dataset = tf.data.Dataset.from_tensor_slices((pixels, labels)).shuffle(len(labels))
    dataset = dataset.map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def measure(images=20_000, image_size=32, batch_size=64, rounds=7):
    """Images per second of both pipelines.

    Args:
        images: positive integer, images in an epoch. Defaults to `20_000`.
        image_size: positive integer, their height and width. Defaults to `32`.
        batch_size: positive integer. Defaults to `64`.
        rounds: positive integer, epochs that are timed, after one that is not. Defaults to `7`.

    Returns:
        A dict: the settings; for each pipeline the images per second of every round, their median
        and the median time of processor per image, which other programs on the machine disturb
        less; and `times_as_fast`, the quotient of the medians of images per second.
    """
    for name, value in (("image_size", image_size), ("rounds", rounds)):
        check_integer(name, value, 1)
    check_integer("images", images, batch_size)
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (images, image_size, image_size, 3), dtype="uint8")
    part = pixels, random.integers(0, 10, images).astype("int32")
    ours = data.from_images(
        "random", data.Images(part, part, 10), SOURCE, batch_size=batch_size, validation_size=0
    ).train
    pipelines = {"batched": ours, "per_image": per_image(*part, batch_size)}
    speeds = {name: [] for name in pipelines}
    costs = {name: [] for name in pipelines}
    for turn in range(rounds + 1):
        for name, dataset in pipelines.items():
            seconds, processor_seconds = _iterate(dataset)
            if turn > 0:
                speeds[name].append(round(images / seconds))
                costs[name].append(processor_seconds / images * 1e6)
    medians = {name: round(statistics.median(speed)) for name, speed in speeds.items()}
    return {
        "settings": {
            "images": images,
            "image_size": image_size,
            "batch_size": batch_size,
            "rounds": rounds,
        },
        "images_per_second": speeds,
        "median_images_per_second": medians,
        "median_processor_us_per_image": {
            name: round(statistics.median(cost), 1) for name, cost in costs.items()
        },
        "times_as_fast": round(medians["batched"] / medians["per_image"], 2),
    }


def _iterate(dataset):
    """Seconds, and seconds of all cores together, that one pass takes."""
    start, processor_start = time.perf_counter(), time.process_time()
    for _ in dataset:
        pass
    return time.perf_counter() - start, time.process_time() - processor_start


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m examples.benchmarks.data_speed",
        description="Measures the batched augmentation against a map over single images.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", help="JSON record to write")
    parser.add_argument("--images", type=int, default=20_000, help="images in an epoch")
    parser.add_argument("--image-size", type=int, default=32, help="their height and width")
    parser.add_argument("--batch-size", type=int, default=64, help="images in a batch")
    parser.add_argument("--rounds", type=int, default=7, help="epochs of each that are timed")
    options = parser.parse_args(arguments)
    try:
        result = measure(options.images, options.image_size, options.batch_size, options.rounds)
        for name, speed in result["median_images_per_second"].items():
            cost = result["median_processor_us_per_image"][name]
            print(f"{name:9} {speed:8,} images/s {cost:6.1f} us of processor per image")
        print(f"{result['times_as_fast']} times as fast")
        if options.out:
            about = {
                "finished": records.now(),
                "commit": records.commit(),
                "versions": records.versions(),
                "device": records.device(),
            }
            with records.replacing(options.out) as temporary:
                temporary.write_text(json.dumps({**result, **about}, indent=1) + "\n")
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
