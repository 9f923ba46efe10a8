"""Image classification data as `tf.data` pipelines: CIFAR, TinyImageNet, digits, synthetic."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from examples.augment import normalise, shift_and_flip


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a data set comes from and how the paper's recipe treats its images."""

    read: Callable
    mean: tuple
    std: tuple
    max_shift: int
    flip: bool


@dataclasses.dataclass(frozen=True)
class Arrays:
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    num_classes: int
    label_names: list | None = None


def _resize(images, size):
    if size is None or images.shape[1:3] == (size, size):
        return images
    resized = tf.image.resize(tf.cast(images, tf.float32), (size, size), method="bicubic")
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)


def _collect(builder, split, image_size):
    dataset = builder.as_dataset(split=split, as_supervised=True).batch(256)
    dataset = dataset.map(lambda x, y: (_resize(x, image_size), y))
    images, labels = zip(*dataset.prefetch(2).as_numpy_iterator(), strict=True)
    return np.concatenate(images), np.concatenate(labels).astype("int32")


def _read_tfds(name):
    def read(image_size, data_dir):
        import tensorflow_datasets as tfds

        builder = tfds.builder(name, data_dir=data_dir)
        builder.download_and_prepare()
        label = builder.info.features["label"]
        return Arrays(
            *_collect(builder, "train", image_size),
            *_collect(builder, "test", image_size),
            label.num_classes,
            label.names,
        )

    return read


def _read_tiny_imagenet(image_size, data_dir):
    raise NotImplementedError


def _fixed_order(n):
    return np.random.RandomState(0).permutation(n)


def _read_digits(image_size, data_dir):
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype("uint8")[..., None]
    images = np.asarray(_resize(images, image_size))
    labels = digits.target.astype("int32")
    train, test = np.split(_fixed_order(len(labels)), [-360])
    return Arrays(
        images[train], labels[train], images[test], labels[test], 10, [str(i) for i in range(10)]
    )


def _read_synthetic(image_size, data_dir, classes=10, train=1000, test=200):
    size = image_size or 32
    rng = np.random.RandomState(0)
    prototypes = rng.randint(64, 192, (classes, size, size, 3))
    labels = np.arange(train + test, dtype="int32") % classes
    images = prototypes[labels] + rng.randint(-64, 64, (train + test, size, size, 3))
    images = images.astype("uint8")
    return Arrays(images[:train], labels[:train], images[train:], labels[train:], classes)


_PAPER = {
    "mean": (0.4914, 0.4822, 0.4465),
    "std": (0.2023, 0.1994, 0.2010),
    "max_shift": 4,
    "flip": True,
}
DATASETS = {
    "cifar10": Source(_read_tfds("cifar10"), **_PAPER),
    "cifar100": Source(_read_tfds("cifar100"), **_PAPER),
    "tiny_imagenet": Source(_read_tiny_imagenet, **_PAPER),
    "digits": Source(_read_digits, mean=(0.3053,), std=(0.3761,), max_shift=1, flip=False),
    "synthetic": Source(_read_synthetic, **_PAPER),
}


@dataclasses.dataclass(frozen=True)
class Data:
    name: str
    num_classes: int
    input_shape: tuple
    train_examples: int
    validation_examples: int
    test_examples: int
    steps_per_epoch: int
    label_names: list | None
    fingerprint: str
    validation: tf.data.Dataset | None
    test: tf.data.Dataset
    _plan: Callable
    _load: Callable

    def train_epoch(self, epoch):
        return _options(self._plan(epoch).map(self._load, tf.data.AUTOTUNE).prefetch(2))

    def train_from(self, epoch=0):
        plans = tf.data.Dataset.range(epoch, tf.int64.max).flat_map(self._plan)
        endless = plans.map(self._load, tf.data.AUTOTUNE)
        endless = endless.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        return _options(endless.prefetch(2))

    @property
    def train(self):
        epochs = itertools.count()
        number = tf.data.Dataset.from_generator(
            lambda: [next(epochs)], output_signature=tf.TensorSpec((), tf.int64)
        )
        once = number.flat_map(self.train_epoch)
        return once.apply(tf.data.experimental.assert_cardinality(self.steps_per_epoch))


def _options(dataset):
    return dataset


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
    if name not in DATASETS:
        raise ValueError(f"Unknown data set {name!r}. Allowed: {', '.join(DATASETS)}")
    source = DATASETS[name]
    raw = source.read(image_size, data_dir)
    n = len(raw.train_labels)
    if validation_size is None:
        validation_size = n // 10
    order = _fixed_order(n)
    held_out, chosen = order[:validation_size], order[validation_size:][:train_size]
    if batch_size > len(chosen):
        raise ValueError(f"batch_size={batch_size} is larger than the {len(chosen)} images")
    steps = len(chosen) // batch_size if drop_remainder else -(-len(chosen) // batch_size)

    with tf.device("CPU:0"):
        images = tf.constant(raw.train_images[chosen])
        labels = tf.constant(raw.train_labels[chosen])

    def plan(epoch):
        """The order, shifts and flips of one epoch: a pure function of the seed and its number."""
        key = tf.random.fold_in(tf.constant([seed, 0], tf.int64), epoch)
        k = tf.random.split(key, 3)
        order = tf.random.experimental.stateless_shuffle(tf.range(len(chosen)), k[0])
        s = source.max_shift if augment else 0
        shifts = tf.random.stateless_uniform((len(chosen), 2), k[1], -s, s + 1, tf.int32)
        flips = tf.random.stateless_uniform((len(chosen),), k[2]) < 0.5
        flips = flips & (source.flip and augment)
        return tf.data.Dataset.from_tensor_slices((order, shifts, flips)).batch(
            batch_size, drop_remainder=drop_remainder
        )

    def load_batch(indices, shifts, flips):
        batch = tf.gather(images, indices)
        if augment:
            batch = shift_and_flip(batch, shifts, flips)
        return normalise(batch, source.mean, source.std), tf.gather(labels, indices)

    def evaluation(x, y):
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)
        return dataset.map(lambda x, y: (normalise(x, source.mean, source.std), y)).prefetch(2)

    digest = hashlib.sha256(
        b"".join(
            [
                raw.train_labels[chosen].tobytes(),
                raw.train_labels[held_out].tobytes(),
                raw.test_labels.tobytes(),
            ]
        )
    ).hexdigest()[:12]
    shape = raw.train_images.shape[1:]
    return Data(
        name=name,
        num_classes=raw.num_classes,
        input_shape=shape,
        train_examples=len(chosen),
        validation_examples=len(held_out),
        test_examples=len(raw.test_labels),
        steps_per_epoch=steps,
        label_names=raw.label_names,
        fingerprint=f"{name}-{len(chosen)}+{len(held_out)}+{len(raw.test_labels)}-{digest}",
        validation=evaluation(raw.train_images[held_out], raw.train_labels[held_out])
        if len(held_out)
        else None,
        test=evaluation(raw.test_images, raw.test_labels),
        _plan=plan,
        _load=load_batch,
    )
