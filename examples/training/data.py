"""The data sets as `tf.data` pipelines, with the paper's augmentation.

`load` returns a `Data` with train, validation and test parts. The images lie in memory as uint8,
before any augmentation; shuffle, crop and flip of an epoch depend on the seed and the number of
the epoch alone, so that a run that is stopped and resumed sees the batches of an unbroken one.

The validation part is cut off the training images, the same ones for every seed; the test part is
the data set's own (TinyImageNet's labelled validation images) and is for the final number.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import urllib.error
import urllib.request
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from examples.training import checks, recipes
from examples.training.augmentation import epoch_plan, normalise, shift_and_flip
from examples.training.checks import check_integer
from examples.training.errors import UsageError

AUTOTUNE = tf.data.AUTOTUNE


@dataclasses.dataclass(frozen=True)
class Images:
    """A data set in memory: uint8 images `(n, height, width, channels)`, int32 labels `(n,)`."""

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    num_classes: int
    label_names: list[str] | None = None


@dataclasses.dataclass(frozen=True)
class Source:
    """A data set and how its images are treated.

    Args:
        read: function of `(image_size, data_dir)` that returns `Images`.
        mean, std: what the channels, scaled to 0 to 1, are normalised with.
        max_shift: augmentation pads by this many pixels and crops to the old size.
        flip: whether augmentation mirrors half of the images.
    """

    read: Callable[[int | None, str | None], Images]
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    std: tuple[float, ...] = (0.2023, 0.1994, 0.2010)
    max_shift: int = 4
    flip: bool = True


@dataclasses.dataclass(frozen=True)
class Data:
    """A data set ready for `fit`, `evaluate` and `predict`.

    Batches are pairs of float32 images `(batch, *input_shape)` and int32 labels `(batch,)`.

    Args:
        name: name of the data set.
        num_classes: number of classes.
        input_shape: `(height, width, channels)`.
        train_examples, validation_examples, test_examples: number of images in each part.
        steps_per_epoch: number of training batches in an epoch.
        label_names: what the classes are called, or None.
        fingerprint: short text that differs when the images' shape, the sizes or the labels do.
        validation: `tf.data.Dataset`, normalised only, or None where `validation_size` is 0.
        test: `tf.data.Dataset`, normalised only.
    """

    name: str
    num_classes: int
    input_shape: tuple[int, int, int]
    train_examples: int
    validation_examples: int
    test_examples: int
    steps_per_epoch: int
    label_names: list[str] | None
    fingerprint: str
    validation: tf.data.Dataset | None
    test: tf.data.Dataset
    _rows: Callable = dataclasses.field(repr=False)
    _batch: Callable = dataclasses.field(repr=False)

    def train_epoch(self, epoch):
        """The training batches of one epoch, the same on every call.

        Args:
            epoch: integer, counted from 0.
        """
        return self._batches(tf.data.Dataset.range(epoch, epoch + 1), self.steps_per_epoch)

    def train_from(self, epoch):
        """Endless training batches: those of `train_epoch(epoch)`, of the next epoch, and so on.

        With this, `fit(data.train_from(k), initial_epoch=k, steps_per_epoch=data.steps_per_epoch)`
        goes on exactly where an unbroken `fit` would be. Keras runs whole executions, so
        `steps_per_execution` must divide `steps_per_epoch`: otherwise an epoch takes batches of the
        next one.

        Args:
            epoch: integer, counted from 0.
        """
        epochs = tf.data.Dataset.range(epoch, tf.int64.max)
        return self._batches(epochs, tf.data.INFINITE_CARDINALITY)

    @functools.cached_property
    def train(self):
        """Training batches of one epoch: iterated again, it gives the next epoch.

        For `fit(data.train, epochs=n)` and plain loops. It counts its own iterations, from 0. To
        start elsewhere, or under a distribution strategy, which reads ahead, use `train_from`.
        """
        with tf.device("CPU:0"):
            started = tf.Variable(-1, dtype=tf.int64, trainable=False)
        epoch = tf.data.Dataset.from_tensors(1).map(lambda _: started.assign_add(1))
        return epoch.flat_map(self.train_epoch).apply(
            tf.data.experimental.assert_cardinality(self.steps_per_epoch)
        )

    def _batches(self, epochs, cardinality):
        batches = epochs.flat_map(self._rows).map(self._batch, num_parallel_calls=AUTOTUNE)
        return batches.apply(tf.data.experimental.assert_cardinality(cardinality)).prefetch(
            AUTOTUNE
        )


@contextlib.contextmanager
def usable():
    """Turns what is wrong with the data or with an argument into a UsageError."""
    try:
        yield
    except (OSError, MemoryError, ValueError) as error:
        raise UsageError(" ".join(str(error).split()) or "not enough memory") from error


def check_memory(count, height, width, channels=3):
    """Raises a UsageError if images would take more memory than the machine has."""
    needed = count * height * width * channels
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if os.name == "posix" else None
    if there is not None and needed > there:
        raise UsageError(
            f"{count:,} images of {height}x{width} pixels would take {needed / 1e9:,.0f} GB of "
            f"memory. This machine has {there / 1e9:,.0f} GB."
        )


def load(
    name,
    batch_size=64,
    seed=0,
    image_size=None,
    data_dir=None,
    validation_size=None,
    train_size=None,
    augment=True,
    drop_remainder=False,
):
    """Loads a data set by name.

    Args:
        name: one of `DATASETS`.
        batch_size: positive integer, at most the number of training images. Defaults to `64`.
        seed: integer from 0 to 2**32 - 1 that order, crops and flips of all epochs follow from.
            The split into training and validation does not depend on it. Defaults to `0`.
        image_size: positive integer, the images' height and width; other sizes are resized
            (bicubic). Defaults to `None`: as the data set has them (`"synthetic"`: 32).
        data_dir: folder of the data. CIFAR: where tensorflow_datasets keeps or puts its records.
            TinyImageNet: the same, or a `tiny-imagenet-200` folder. Not used by the others.
            Defaults to `None`: the folder that the environment variable `TFDS_DATA_DIR` names, or
            else that of tensorflow_datasets.
        validation_size: non-negative integer, number of training images that are held out for
            choices. Defaults to `None`: a tenth.
        train_size: positive integer, number of training images to use, always the same ones.
            Defaults to `None`: all that are not held out.
        augment: whether the training images are cropped and flipped. Defaults to `True`.
        drop_remainder: whether a smaller last training batch is left out. Defaults to `False`.

    Returns:
        A `Data`.

    Raises:
        ValueError: if an argument is not as said above, or the data cannot be had.

    Example:

    >>> data = load("digits", batch_size=32)
    >>> data.input_shape, data.steps_per_epoch
    ((8, 8, 1), 41)
    >>> images, labels = next(iter(data.train))
    >>> images.shape
    TensorShape([32, 8, 8, 1])
    """
    if name not in DATASETS:
        raise checks.refused("name", f"one of {', '.join(DATASETS)}", name)
    check_integer("batch_size", batch_size, 1)
    check_integer("seed", seed, 0, recipes.LARGEST_SEED)
    if image_size is not None:
        check_integer("image_size", image_size, 1)
    if data_dir is not None and not pathlib.Path(data_dir).is_dir():
        raise ValueError(
            f"Argument `data_dir` must be an existing folder. Received: data_dir={str(data_dir)!r}"
        )
    source = DATASETS[name]
    return from_images(
        name,
        source.read(image_size, data_dir),
        source,
        batch_size=batch_size,
        seed=seed,
        validation_size=validation_size,
        train_size=train_size,
        augment=augment,
        drop_remainder=drop_remainder,
    )


def from_images(
    name,
    images,
    source,
    batch_size=64,
    seed=0,
    validation_size=None,
    train_size=None,
    augment=True,
    drop_remainder=False,
):
    """Makes a `Data` of images in memory; arguments as in `load`, with `Images` and `Source`."""
    train_ids, validation_ids = _split(len(images.train[1]), validation_size, train_size)
    count = len(train_ids)
    check_integer("batch_size", batch_size, 1, count, "the number of training images")
    max_shift, flip = (source.max_shift, source.flip) if augment else (0, False)

    # Kept off the GPU: tf.data runs on the host.
    with tf.device("CPU:0"):
        train, test = (
            tuple(tf.convert_to_tensor(array) for array in part)
            for part in (images.train, images.test)
        )
        ids = tf.constant(train_ids)

    def rows(epoch):
        plan = epoch_plan(count, seed, epoch, max_shift, flip)
        return tf.data.Dataset.from_tensor_slices(plan).batch(batch_size, drop_remainder)

    def batch(rows):
        chosen = tf.gather(ids, rows[:, 0])
        pixels = tf.gather(train[0], chosen)
        if augment:
            pixels = shift_and_flip(pixels, rows[:, 1:3], rows[:, 3])
        return normalise(pixels, source.mean, source.std), tf.gather(train[1], chosen)

    def plain(part, ids):
        def batch(ids):
            pixels, labels = (tf.gather(array, ids) for array in part)
            return normalise(pixels, source.mean, source.std), labels

        batches = tf.data.Dataset.from_tensor_slices(ids).batch(batch_size)
        return batches.map(batch, num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE)

    sizes = (count, len(validation_ids), len(images.test[1]))
    shape = images.train[0].shape[1:]
    labels = (images.train[1][train_ids], images.train[1][validation_ids], images.test[1])
    checksum = hashlib.sha256(np.concatenate(labels).astype("<i4").tobytes()).hexdigest()[:12]
    return Data(
        name=name,
        num_classes=images.num_classes,
        input_shape=shape,
        train_examples=sizes[0],
        validation_examples=sizes[1],
        test_examples=sizes[2],
        steps_per_epoch=count // batch_size if drop_remainder else -(-count // batch_size),
        label_names=images.label_names,
        fingerprint="-".join(
            [name, "x".join(map(str, shape)), "+".join(map(str, sizes)), checksum]
        ),
        validation=plain(train, validation_ids) if len(validation_ids) else None,
        test=plain(test, np.arange(sizes[2])),
        _rows=rows,
        _batch=batch,
    )


def _order(count):
    """A shuffled `range(count)` that never changes: NumPy keeps RandomState's streams fixed."""
    return np.random.RandomState(0).permutation(count)


def _split(count, validation_size, train_size):
    if validation_size is None:
        validation_size = count // 10
    check_integer(
        "validation_size", validation_size, 0, count - 1, "so that one is left to train on"
    )
    if train_size is None:
        train_size = count - validation_size
    check_integer("train_size", train_size, 1, count - validation_size, "the number not held out")
    order = _order(count)
    return order[validation_size:][:train_size], order[:validation_size]


def _resize(images, size):
    if size is None or tuple(images.shape[1:3]) == (size, size):
        return images
    resized = tf.image.resize(images, (size, size), method="bicubic")
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)


def _read_cifar(name, image_size, data_dir):
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=_records_dir(data_dir))
    _prepare(
        builder,
        [*builder.url_infos, "https://storage.googleapis.com"],
        "Connect to the network, or set `data_dir` or the environment variable TFDS_DATA_DIR to a "
        f"folder where tensorflow_datasets has already prepared {name}.",
    )
    return _read_records(builder, "test", image_size)


def _read_tiny_imagenet(image_size, data_dir):
    from examples.training.tiny_imagenet import URL, TinyImagenet

    folder = _tiny_imagenet_folder(data_dir)
    if folder:
        builder = TinyImagenet.from_folder(folder, data_dir=_records_dir(None))
        if not builder.is_prepared():
            # tensorflow_datasets says "Downloading" of whatever it prepares.
            print(f"No download: the images of {folder} are copied, once, to {builder.data_dir}")
        _prepare(builder)
    else:
        builder = TinyImagenet(data_dir=_records_dir(data_dir))
        _prepare(
            builder,
            [URL],
            "Connect to the network, or set `data_dir` to an unpacked `tiny-imagenet-200` folder.",
        )
    images = _read_records(builder, "validation", image_size)
    return dataclasses.replace(images, label_names=list(builder.info.metadata["words"]))


def _tiny_imagenet_folder(data_dir):
    """The `tiny-imagenet-200` folder that `data_dir` is or holds, or None if it has records."""
    if data_dir is None:
        return None
    data_dir = pathlib.Path(data_dir)
    for folder in (data_dir, data_dir / "tiny-imagenet-200"):
        if (folder / "wnids.txt").is_file() or (folder / "train").is_dir():
            return folder
    if (data_dir / "tiny_imagenet").is_dir():
        return None
    raise ValueError(
        "Argument `data_dir` must be a `tiny-imagenet-200` folder (with `wnids.txt`, `train` and "
        f"`val`), or hold one. Received: data_dir={str(data_dir)!r}"
    )


def _records_dir(data_dir):
    """Folder of tensorflow_datasets' records; None leaves it to tensorflow_datasets."""
    return data_dir or os.environ.get("TFDS_DATA_DIR") or None


def _prepare(builder, urls=(), advice=""):
    """Downloads and prepares the records unless they are there."""
    if builder.is_prepared():
        return
    if urls and not any(_answers(url) for url in urls):
        raise ValueError(
            f"{builder.name}: there is no data in {builder.data_dir}, and it cannot be downloaded: "
            f"{urls[0]} does not answer. {advice}"
        )
    try:
        builder.download_and_prepare()
    except ValueError:
        raise
    except Exception as error:  # tensorflow_datasets, requests and the disk each have their own
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{builder.name}: cannot prepare the records in {builder.data_dir}: {reason}"
        ) from error


def _answers(url):
    """Whether a host answers: tensorflow_datasets itself would try for minutes."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _read_records(builder, test_split, image_size):
    label = builder.info.features["label"]
    return Images(
        train=_read_split(builder, "train", image_size),
        test=_read_split(builder, test_split, image_size),
        num_classes=label.num_classes,
        label_names=label.names,
    )


def _read_split(builder, split, image_size):
    count = builder.info.splits[split].num_examples
    height, width, channels = builder.info.features["image"].shape
    check_memory(count, image_size or height, image_size or width, channels)
    images = np.empty((count, image_size or height, image_size or width, channels), "uint8")
    labels = np.empty(count, "int32")
    batches = builder.as_dataset(split=split, as_supervised=True).batch(256)
    batches = batches.map(lambda x, y: (_resize(x, image_size), y), num_parallel_calls=AUTOTUNE)
    start = 0
    try:
        for pixels, classes in batches.prefetch(AUTOTUNE).as_numpy_iterator():
            stop = start + len(classes)
            images[start:stop], labels[start:stop] = pixels, classes
            start = stop
    except tf.errors.OpError as error:
        raise ValueError(
            f"{builder.name}: the records in {builder.data_dir} are damaged. Delete that folder to "
            "have them prepared anew."
        ) from error
    return images, labels


def _read_digits(image_size, data_dir):
    from sklearn.datasets import load_digits

    digits = load_digits()  # 16 grey levels
    pixels = np.round(digits.images[..., None] * (255 / 16)).astype("uint8")
    # Resizing computes with four bytes a pixel, several times over.
    check_memory(len(pixels), image_size or 8, image_size or 8, 16)
    pixels = np.asarray(_resize(pixels, image_size))
    labels = digits.target.astype("int32")
    train, test = np.split(_order(len(labels)), [-360])
    names = [str(digit) for digit in range(10)]
    return Images((pixels[train], labels[train]), (pixels[test], labels[test]), 10, names)


def _read_synthetic(image_size, data_dir):
    """Ten classes, each a colour under noise."""
    size, train, test = image_size or 32, 1000, 200
    check_memory(train + test, size, size, 3 * 24)  # NumPy's random integers take eight bytes
    random = np.random.RandomState(0)
    colours = random.randint(64, 192, (10, 1, 1, 3))
    labels = random.randint(0, 10, train + test).astype("int32")
    pixels = colours[labels] + random.randint(-64, 64, (train + test, size, size, 3))
    pixels = pixels.astype("uint8")
    return Images((pixels[:train], labels[:train]), (pixels[train:], labels[train:]), 10)


_SOURCES = {
    "cifar10": Source(functools.partial(_read_cifar, "cifar10")),
    "cifar100": Source(functools.partial(_read_cifar, "cifar100")),
    "tiny_imagenet": Source(_read_tiny_imagenet),
    # Mean and standard deviation of the digits; a mirrored digit is none.
    "digits": Source(_read_digits, mean=(0.3053,), std=(0.3760,), max_shift=1, flip=False),
    "synthetic": Source(_read_synthetic),
}
DATASETS = {name: _SOURCES[name] for name in recipes.DATASETS}
