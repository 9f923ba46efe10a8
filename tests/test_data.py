"""The pipelines: what a batch holds, and that it follows from seed and epoch."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples import show_batch
from examples.benchmarks import data_speed
from examples.training import data, models
from examples.training.augmentation import epoch_plan, normalise, shift_and_flip
from examples.training.errors import UsageError
from tests.support.command_line import assert_refused

MEAN, STD = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])


def pad_crop_flip(image, down, right, flip, pad=4):
    """The paper's augmentation of one image, plainly."""
    height, width = image.shape[:2]
    padded = np.pad(image, [(pad, pad), (pad, pad), (0, 0)])
    crop = padded[pad + down :][:height, pad + right :][:, :width]
    return crop[:, ::-1] if flip else crop


def random_images(count=50, size=12, channels=3, classes=5):
    """Images of which no two are alike, so that a pixel tells where it comes from."""
    random = np.random.default_rng(0)
    pixels = random.integers(1, 256, (count, size, size, channels), dtype="uint8")
    labels = random.integers(0, classes, count).astype("int32")
    half = count // 2
    return data.Images((pixels[:half], labels[:half]), (pixels[half:], labels[half:]), classes)


def make(images=None, **arguments):
    images = images or random_images()
    return data.from_images("random", images, data.Source(None), **{"batch_size": 4, **arguments})


def batches(dataset):
    return [(x, y) for x, y in dataset.as_numpy_iterator()]


def joined(dataset):
    return tuple(np.concatenate(part) for part in zip(*batches(dataset), strict=True))


def assert_same(first, second):
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def assert_other(first, second):
    assert any(not np.array_equal(a[0], b[0]) for a, b in zip(first, second, strict=True))


# Augmentation


@pytest.mark.parametrize("shape", [(32, 32, 3), (9, 14, 1)])
def test_batched_augmentation_is_pad_crop_and_flip(shape):
    cases = [(y, x, f) for y in range(-4, 5) for x in range(-4, 5) for f in (0, 1)]
    images = np.random.default_rng(0).integers(1, 256, (len(cases), *shape), dtype="uint8")
    moved = shift_and_flip(images, [case[:2] for case in cases], [case[2] for case in cases])
    expected = [pad_crop_flip(image, *case) for image, case in zip(images, cases, strict=True)]
    assert moved.dtype == "uint8"
    np.testing.assert_array_equal(moved, expected)


def test_normalise():
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype="uint8")
    out = normalise(tf.constant(images), MEAN, STD)
    assert out.dtype == "float32"
    np.testing.assert_allclose(out, (images / 255 - MEAN) / STD, atol=1e-6)


def test_a_plan_moves_and_mirrors_evenly():
    plan = epoch_plan(9000, seed=0, epoch=0, max_shift=4, flip=True).numpy()
    np.testing.assert_array_equal(np.sort(plan[:, 0]), np.arange(9000))
    assert not np.array_equal(plan[:, 0], np.arange(9000))
    for shifts in (plan[:, 1], plan[:, 2]):
        values, counts = np.unique(shifts, return_counts=True)
        np.testing.assert_array_equal(values, np.arange(-4, 5))
        np.testing.assert_allclose(counts, 1000, atol=150)  # five standard deviations
    assert abs(np.corrcoef(plan[:, 1], plan[:, 2])[0, 1]) < 0.05
    values, counts = np.unique(plan[:, 3], return_counts=True)
    np.testing.assert_array_equal(values, [0, 1])
    np.testing.assert_allclose(counts, 4500, atol=240)


def test_a_plan_follows_from_seed_and_epoch():
    def plan(seed, epoch):
        return epoch_plan(100, seed, epoch, 4, True).numpy()

    np.testing.assert_array_equal(plan(1, 2), plan(1, tf.constant(2, tf.int64)))
    plans = [plan(*pair) for pair in ((0, 0), (0, 1), (1, 0), (1, 1), (2**32 - 1, 0))]
    for i, first in enumerate(plans):
        for second in plans[:i]:
            for column in range(4):
                assert not np.array_equal(first[:, column], second[:, column])


def test_training_batches_are_the_planned_ones():
    images = random_images()
    made = make(images, seed=5, validation_size=3)
    plan = epoch_plan(22, 5, 7, 4, True).numpy()
    original = {raw.tobytes(): label for raw, label in zip(*images.train, strict=True)}
    plain, plain_labels = joined(make(images, validation_size=3, augment=False).train_epoch(7))
    assert len(plain) == 22
    pixels = np.round((plain * STD + MEAN) * 255).astype("uint8")
    assert [original[image.tobytes()] for image in pixels] == plain_labels.tolist()

    # The same images without augmentation, in the order of seed 0; find each in that of seed 5.
    order0 = epoch_plan(22, 0, 7, 0, False).numpy()[:, 0]
    by_index = {index: image for index, image in zip(order0, pixels, strict=True)}
    expected = [pad_crop_flip(by_index[i], *move) for i, *move in plan.tolist()]
    augmented, labels = joined(made.train_epoch(7))
    np.testing.assert_allclose(augmented, (np.array(expected) / 255 - MEAN) / STD, atol=1e-5)
    np.testing.assert_array_equal(labels, [original[by_index[i].tobytes()] for i in plan[:, 0]])


# Epochs


def test_every_epoch_is_shuffled_and_augmented_anew():
    made = make(random_images(count=4), validation_size=0, batch_size=1)
    views = {
        batch[0].tobytes() for epoch in range(20) for batch in batches(made.train_epoch(epoch))
    }
    assert len(views) > 30  # of 2 images x 162 moves, in 40 draws
    big = make(validation_size=0)
    orders = {joined(big.train_epoch(epoch))[1].tobytes() for epoch in range(10)}
    assert len(orders) == 10


def test_the_same_seed_gives_the_same_batches():
    first, second, other = (make(seed=seed) for seed in (3, 3, 4))
    for epoch in range(3):
        assert_same(batches(first.train_epoch(epoch)), batches(second.train_epoch(epoch)))
        assert_other(batches(first.train_epoch(epoch)), batches(other.train_epoch(epoch)))


def test_train_gives_the_next_epoch_every_time():
    made = make()
    for epoch in range(3):
        assert_same(batches(made.train), batches(made.train_epoch(epoch)))


def test_train_from_goes_on_where_an_unbroken_run_would_be():
    made = make()
    steps = made.steps_per_epoch
    unbroken = batches(made.train_from(0).take(5 * steps))
    for epoch in range(5):
        assert_same(unbroken[epoch * steps :][:steps], batches(made.train_epoch(epoch)))
    assert_same(unbroken[3 * steps :], batches(made.train_from(3).take(2 * steps)))


class Recorder(keras.Model):
    """Keeps the batches that `fit` hands to a training step."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def train_step(self, batch):
        self.seen.append(tuple(part.numpy() for part in batch))
        return {"batches": tf.constant(len(self.seen))}

    def recorded(self, *args, **kwargs):
        self.compile(optimizer=None, run_eagerly=True)
        self.fit(*args, shuffle=False, verbose=0, **kwargs)
        return self.seen


def test_fit_sees_the_epochs_in_order():
    made = make()
    expected = [batch for epoch in range(3) for batch in batches(made.train_epoch(epoch))]
    assert_same(Recorder().recorded(made.train, epochs=3), expected)
    steps = made.steps_per_epoch
    seen = Recorder().recorded(made.train_from(0), steps_per_epoch=steps, epochs=3)
    assert_same(seen, expected)
    seen = Recorder().recorded(made.train_from(1), steps_per_epoch=steps, initial_epoch=1, epochs=3)
    assert_same(seen, expected[steps:])


# Parts


def test_the_parts_do_not_depend_on_the_seed():
    images = random_images(count=80)
    parts = []
    for seed in (0, 1):
        made = make(images, seed=seed, augment=False)
        assert (made.train_examples, made.validation_examples, made.test_examples) == (36, 4, 40)
        train = {image.tobytes() for image in joined(made.train_epoch(0))[0]}
        validation = {image.tobytes() for image in joined(made.validation)[0]}
        assert (len(train), len(validation)) == (36, 4)
        assert not train & validation
        parts.append((train, validation))
    assert parts[0] == parts[1]
    everything = normalise(tf.constant(images.train[0]), MEAN, STD).numpy()
    assert parts[0][0] | parts[0][1] == {image.tobytes() for image in everything}


def test_train_size_takes_the_same_images_first():
    def chosen(size):
        made = make(train_size=size, validation_size=5, augment=False, batch_size=1)
        assert made.train_examples == size
        return {image.tobytes() for image in joined(made.train_epoch(0))[0]}

    assert chosen(3) < chosen(10) < chosen(20)
    a, b = (make(train_size=size, validation_size=5, batch_size=3) for size in (3, 20))
    assert_same(batches(a.validation), batches(b.validation))


def test_validation_and_test_images_are_only_normalised():
    images = random_images()
    made = make(images)
    x, y = joined(made.test)
    np.testing.assert_allclose(x, (images.test[0] / 255 - MEAN) / STD, atol=1e-6)
    np.testing.assert_array_equal(y, images.test[1])
    assert_same(batches(made.test), batches(made.test))
    known = {
        image.tobytes() for image in normalise(tf.constant(images.train[0]), MEAN, STD).numpy()
    }
    assert {image.tobytes() for image in joined(made.validation)[0]} < known


@pytest.mark.parametrize(("drop", "sizes"), [(False, [10, 10, 2]), (True, [10, 10])])
def test_the_last_batch(drop, sizes):
    made = make(validation_size=3, batch_size=10, drop_remainder=drop)
    assert [len(y) for _, y in batches(made.train_epoch(0))] == sizes
    assert [len(y) for _, y in batches(made.train)] == sizes
    assert made.steps_per_epoch == len(sizes) == int(made.train.cardinality())
    assert sum(len(y) for _, y in batches(made.test)) == 25


def test_no_validation_part():
    made = make(validation_size=0)
    assert made.validation is None
    assert (made.train_examples, made.validation_examples) == (25, 0)


def test_the_fingerprint_tells_data_apart():
    images = random_images()
    fingerprint = make(images).fingerprint
    assert fingerprint == make(images, seed=1, batch_size=3, augment=False).fingerprint
    relabelled = images.train[1].copy()
    relabelled[0] += 1
    others = [
        make(images, train_size=10),
        make(images, validation_size=5),
        make(random_images(size=10)),
        make(data.Images((images.train[0], relabelled), images.test, 6)),
    ]
    assert len({fingerprint, *(other.fingerprint for other in others)}) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mnist"}, r"`name` must be one of cifar10, .*. Received: name='mnist'"),
        ({"batch_size": 0}, "`batch_size` must be an integer of at least 1. Received"),
        ({"batch_size": 6.0}, "`batch_size` must be an integer of at least 1. Received"),
        ({"batch_size": True}, "`batch_size` must be an integer of at least 1. Received"),
        (
            {"batch_size": 1295},
            "`batch_size` must be an integer from 1 to 1294, the number of training images. ",
        ),
        ({"batch_size": 11, "train_size": 10}, "`batch_size` must be an integer from 1 to 10,"),
        ({"seed": -1}, "`seed` must be an integer from 0 to 4294967295. Received: seed=-1"),
        ({"image_size": 0}, "`image_size` must be an integer of at least 1. Received"),
        ({"validation_size": -1}, "`validation_size` must be an integer from 0 to 1436"),
        ({"validation_size": 1437}, "`validation_size` must be an integer from 0 to 1436"),
        ({"train_size": 0}, "`train_size` must be an integer from 1 to 1294"),
        ({"train_size": 1295}, "`train_size` must be an integer from 1 to 1294"),
        ({"data_dir": "no-such-folder"}, "`data_dir` must be an existing folder. Received"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.load(**{"name": "digits", **arguments})


# Digits and synthetic images


def test_digits():
    made = data.load("digits")
    assert made.input_shape == (8, 8, 1)
    assert (made.train_examples, made.validation_examples, made.test_examples) == (1294, 143, 360)
    assert made.label_names == list("0123456789")
    plain = joined(data.load("digits", augment=False).train_epoch(0))[0]
    assert abs(plain.mean()) < 0.02
    assert abs(plain.std() - 1) < 0.02


def test_digits_are_moved_by_a_pixel_at_most_and_not_mirrored():
    plain, moved = (
        joined(data.load("digits", augment=augment, batch_size=1294).train_epoch(0))[0]
        for augment in (False, True)
    )
    black = -0.3053 / 0.3760
    padded = np.pad(plain, [(0, 0), (1, 1), (1, 1), (0, 0)], constant_values=black)
    views = [padded[:, y : y + 8, x : x + 8] for y in range(3) for x in range(3)]
    found = [np.abs(moved - view).max((1, 2, 3)) < 1e-5 for view in views]
    assert np.any(found, axis=0).all()
    assert all(np.mean(view) > 0.05 for view in found)


def test_a_network_learns_the_digits():
    made = data.load("digits")
    model = models.build("cnn", made.num_classes, made.input_shape, seed=0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    model.fit(made.train, epochs=8, shuffle=False, verbose=0)
    assert model.evaluate(made.test, verbose=0, return_dict=True)["accuracy"] > 0.9


@pytest.mark.parametrize("size", [None, 20])
def test_synthetic_images_of_any_size(size):
    made = data.load("synthetic", image_size=size, batch_size=50)
    side = size or 32
    assert made.input_shape == (side, side, 3)
    x, y = joined(made.test)
    assert x.shape == (200, side, side, 3)
    train_x, train_y = joined(data.load("synthetic", image_size=size, augment=False).train)
    colours = np.stack([train_x[train_y == k].mean((0, 1, 2)) for k in range(10)])
    nearest = np.square(x.mean((1, 2))[:, None] - colours).sum(-1).argmin(1)
    assert np.mean(nearest == y) > 0.9  # a network has something to learn


# Programs


def test_show_batch_draws_the_batch(tmp_path, capsys):
    made = data.load("digits", batch_size=11)
    figure = show_batch.draw(made, epoch=2)
    images, labels = batches(made.train_epoch(2))[0]
    shown = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in shown] == [str(label) for label in labels]
    for axes, image in zip(shown, images, strict=True):
        np.testing.assert_allclose(
            axes.images[0].get_array(), image[..., 0] * 0.376 + 0.3053, atol=1e-6
        )

    out = tmp_path / "batch.png"
    show_batch.main(["--dataset", "synthetic", "--batch-size", "4", "--output", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"{out}\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--output batch.doc", "Argument `output` must be a file that ends in one of"),
        ("--output .", "Argument `output` must be a file, not a folder or a device"),
        ("--batch-size 1200", "Argument `batch_size` must be an integer from 1 to 256"),
        ("--dataset digits --image-size 9999999", "`image_size` must be an integer from 1 to 4096"),
        ("--dataset mnist", "Argument `dataset` must be one of cifar10"),
        (
            "--dataset tiny_imagenet --data-dir /dev/null/nowhere",
            "`data_dir` must be an existing folder",
        ),
        ("--epoch -1", "Argument `epoch` must be an integer of at least 0"),
        ("--out batch.png", "there is no option --out batch.png"),
    ],
)
def test_show_batch_refuses_on_one_line(arguments, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert_refused(show_batch.main, arguments.split(), capsys, "examples.show_batch", complaint)


def test_images_that_exceed_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr(data.os, "sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.get)
    with pytest.raises(UsageError, match=r"would take 6 GB of memory. This machine has 0 GB"):
        data.load("synthetic", image_size=256)
    data.check_memory(1000, 32, 32)


def test_data_speed_writes_a_record(tmp_path, capsys):
    out = tmp_path / "speed.json"
    arguments = ["--images", "128", "--image-size", "8", "--rounds", "3", "--output", str(out)]
    assert data_speed.main(arguments) == 0
    record = json.loads(out.read_text())
    assert {"settings", "versions", "device", "finished", "commit"} <= set(record)
    for name, speeds in record["images_per_second"].items():
        assert len(speeds) == 3
        assert record["median_images_per_second"][name] == sorted(speeds)[1] > 0
        assert record["median_processor_us_per_image"][name] > 0
    medians = record["median_images_per_second"]
    assert record["times_as_fast"] == round(medians["batched"] / medians["per_image"], 2)
    capsys.readouterr()
    for wrong, complaint in {
        "--images 10": "`images` must be an integer of at least 64",
        "--images 99999999999999": "`images` must be at most 2147483647",
        "--images 2000000000 --image-size 4096": "of memory. This machine has",
        f"--output {tmp_path}": "`output` must be a file, not a folder",
        "--rounds 0": "`rounds` must be an integer from 1 to 10000",
    }.items():
        name = "examples.benchmarks.data_speed"
        assert_refused(data_speed.main, wrong.split(), capsys, name, complaint)


def test_the_pipeline_that_speed_is_measured_against_does_the_same():
    pixels, labels = random_images(count=40, size=8).train
    pipeline = data_speed.per_image(pixels, labels, batch_size=5)
    first, second = joined(pipeline), joined(pipeline)
    assert not np.array_equal(first[0], second[0])
    moves = [(y, x, f) for y in range(-4, 5) for x in range(-4, 5) for f in (0, 1)]
    views = np.array([pad_crop_flip(image, *move) for image in pixels for move in moves])
    known = {view.tobytes() for view in views}
    shown = np.round((first[0] * STD + MEAN) * 255).astype("uint8")
    assert len(shown) == 20
    assert all(image.tobytes() in known for image in shown)
