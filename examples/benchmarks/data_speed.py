"""Measures our batched augmentation against a `map` of tf.image functions over single images.

example:
  python -m examples.benchmarks.data_speed --output examples/benchmarks/results/data_speed.json

Both shuffle uint8 images that lie in memory, pad, crop, flip and normalize them, and prefetch.
They take turns, so that whatever else the machine does affects both; a round is one epoch of each.
"""

import dataclasses
import json
import pathlib
import statistics
import sys
import time
from typing import Annotated

from examples.training import checks, command_line, options, records
from examples.training.checks import Setting
from examples.training.errors import UsageError

PROGRAM = "python -m examples.benchmarks.data_speed"


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured, and where it is written."""

    images: Annotated[int, Setting("images in an epoch", low=1)] = 20_000
    image_size: Annotated[int, Setting("their height and width", low=1, high=4096)] = 32
    batch_size: Annotated[int, Setting("images in a batch", low=1)] = 64
    rounds: Annotated[int, Setting("epochs of each that are timed", low=1, high=10_000)] = 7
    output: Annotated[
        pathlib.Path | None,
        Setting("JSON record to write", metavar="FILE", unset="none", file=True),
    ] = None

    def __post_init__(self):
        checks.check(self)
        checks.check_integer("images", self.images, self.batch_size)


def per_image(pixels, labels, batch_size):
    """The paper's augmentation written with tf.image, one image at a time."""
    import tensorflow as tf

    from examples.training import data

    source = data.Source(read=None)
    height, width, channels = pixels.shape[1:]
    pad = source.max_shift

    def augment(image, label):
        image = tf.pad(image, [(pad, pad), (pad, pad), (0, 0)])
        image = tf.image.random_crop(image, (height, width, channels))
        image = tf.image.random_flip_left_right(image)
        return (tf.image.convert_image_dtype(image, tf.float32) - source.mean) / source.std, label

    dataset = tf.data.Dataset.from_tensor_slices((pixels, labels)).shuffle(len(labels))
    dataset = dataset.map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def measure(chosen):
    """Images per second of both pipelines, in `rounds` epochs after one that is not timed.

    Args:
        chosen: `Options`.

    Returns:
        A dict: the settings; for each pipeline the images per second of every round, their median
        and the median time of processor per image, which other programs on the machine disturb
        less; and `times_as_fast`, the quotient of the medians of images per second.
    """
    import numpy as np

    from examples.training import data

    images, image_size, batch_size = chosen.images, chosen.image_size, chosen.batch_size
    data.check_memory(2 * images, image_size, image_size)
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (images, image_size, image_size, 3), dtype="uint8")
    part = pixels, random.integers(0, 10, images).astype("int32")
    ours = data.from_images(
        "random",
        data.Images(part, part, 10),
        data.Source(read=None),
        batch_size=batch_size,
        validation_size=0,
    ).train
    pipelines = {"batched": ours, "per_image": per_image(*part, batch_size)}
    speeds = {name: [] for name in pipelines}
    costs = {name: [] for name in pipelines}
    for turn in range(chosen.rounds + 1):
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
            "rounds": chosen.rounds,
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
    """Runs the command line and returns its exit status."""
    return command_line.run(PROGRAM, lambda: _measure(arguments))


def _measure(arguments):
    chosen = Options(
        **options.read(PROGRAM, __doc__, {"measurement": options.group(Options)}, arguments)
    )
    if chosen.output is not None:
        records.make_folder(chosen.output.parent)
    try:
        result = measure(chosen)
    except MemoryError:
        raise UsageError("These images do not fit into the memory.") from None
    for name, speed in result["median_images_per_second"].items():
        cost = result["median_processor_us_per_image"][name]
        print(f"{name:9} {speed:8,} images/s {cost:6.1f} us of processor per image")
    print(f"{result['times_as_fast']} times as fast")
    if chosen.output is not None:
        about = {
            "finished": records.now(),
            **records.origin(),
        }
        with records.replacing(chosen.output) as temporary:
            temporary.write_text(json.dumps({**result, **about}, indent=1) + "\n")
        print(chosen.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
