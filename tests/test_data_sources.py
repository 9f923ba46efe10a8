"""Where the images come from: records of tensorflow_datasets, a TinyImageNet folder, or neither."""

import http.server
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from examples.training import data
from examples.training.tiny_imagenet import URL, TinyImagenet, read_folder

MEAN, STD = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])


def load(name, **arguments):
    return data.load(name, **{"batch_size": 4, "augment": False, **arguments})


def pixels_and_labels(dataset):
    """The uint8 images, as bytes, with their labels, sorted."""
    pairs = []
    for images, labels in dataset.as_numpy_iterator():
        pixels = np.round((images * STD + MEAN) * 255).astype("uint8")
        pairs += [(image.tobytes(), label) for image, label in zip(pixels, labels, strict=True)]
    return sorted(pairs)


@pytest.fixture(autouse=True)
def records(tmp_path, monkeypatch):
    """An empty folder for records, and no network."""
    folder = tmp_path / "records"
    folder.mkdir()
    monkeypatch.setenv("TFDS_DATA_DIR", str(folder))
    monkeypatch.setattr(data, "_answers", lambda url: False)
    return folder


# CIFAR


def write_cifar(folder, name, classes):
    """Writes CIFAR records of 40 training and 20 test images; returns the images."""
    random = np.random.default_rng(0)
    parts = {
        split: [
            {"id": f"{split}_{i}", "image": image, "label": int(random.integers(classes))}
            for i, image in enumerate(random.integers(0, 256, (count, 32, 32, 3), dtype="uint8"))
        ]
        for split, count in (("train", 40), ("test", 20))
    }
    features = {
        "id": tfds.features.Text(),
        "image": tfds.features.Image(shape=(32, 32, 3)),
        "label": tfds.features.ClassLabel(names=[f"class {i}" for i in range(classes)]),
    }
    if name == "cifar100":
        features["coarse_label"] = tfds.features.ClassLabel(num_classes=20)
        for example in [*parts["train"], *parts["test"]]:
            example["coarse_label"] = 0
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version=tfds.builder_cls(name).VERSION,
        features=tfds.features.FeaturesDict(features),
        split_datasets={
            split: [(example["id"], example) for example in part] for split, part in parts.items()
        },
        data_dir=folder,
    )
    return {
        split: sorted((example["image"].tobytes(), example["label"]) for example in part)
        for split, part in parts.items()
    }


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar_from_records(records, tmp_path, name, classes):
    parts = write_cifar(records, name, classes)
    made = load(name)
    assert (made.num_classes, made.input_shape) == (classes, (32, 32, 3))
    assert (made.train_examples, made.validation_examples, made.test_examples) == (36, 4, 20)
    assert made.label_names == [f"class {i}" for i in range(classes)]
    assert pixels_and_labels(made.test) == parts["test"]
    seen = pixels_and_labels(made.train.concatenate(made.validation))
    assert seen == parts["train"]

    elsewhere = tmp_path / "elsewhere"
    records.rename(elsewhere)
    assert load(name, data_dir=elsewhere).fingerprint == made.fingerprint


def test_images_are_resized(records):
    write_cifar(records, "cifar10", 10)
    made = load("cifar10", image_size=16)
    assert made.input_shape == (16, 16, 3)
    assert next(iter(made.test))[0].shape == (4, 16, 16, 3)


def test_no_records_and_no_network(records):
    message = (
        r"^cifar10: there is no data in .*records/cifar10.*, and it cannot be downloaded: "
        r"https://\S+ does not answer. Connect to the network, or set `data_dir` or the "
        r"environment variable TFDS_DATA_DIR .* prepared cifar10.$"
    )
    with pytest.raises(ValueError, match=message):
        load("cifar10")
    message = "^tiny_imagenet: there is no data in .* set `data_dir` to .* `tiny-imagenet-200`"
    with pytest.raises(ValueError, match=message):
        load("tiny_imagenet")


def test_a_download_that_breaks_off_is_one_line(records, monkeypatch):
    def download(*args, **kwargs):
        raise ConnectionError("connection\nlost")

    monkeypatch.setattr(data, "_answers", lambda url: True)
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", download)
    with pytest.raises(ValueError, match=r"^cifar10: cannot prepare .*: connection lost$"):
        load("cifar10")


def test_damaged_records(records):
    write_cifar(records, "cifar10", 10)
    (file,) = records.rglob("*train.tfrecord*")
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="^cifar10: the records in .* are damaged. Delete"):
        load("cifar10")


@pytest.mark.parametrize("status", [200, 405])
def test_a_host_that_answers(monkeypatch, status):
    monkeypatch.undo()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/file"
        assert data._answers(url)
    assert not data._answers(url)


# TinyImageNet


def write_tiny_imagenet(parent, classes=3, train=4, validation=2, seed=0):
    """Writes a small `tiny-imagenet-200` folder, a few of its images grey."""
    random = np.random.default_rng(seed)
    folder = parent / "tiny-imagenet-200"
    labels = [f"n0000000{i}" for i in range(classes)]

    def write_image(path, channels):
        path.parent.mkdir(parents=True, exist_ok=True)
        image = random.integers(0, 256, (64, 64, channels), dtype="uint8")
        path.write_bytes(tf.io.encode_jpeg(image).numpy())

    for label in labels:
        names = [f"{label}_{i}.JPEG" for i in range(train)]
        for i, name in enumerate(names):
            write_image(folder / "train" / label / "images" / name, 1 if i == 0 else 3)
        boxes = folder / "train" / label / f"{label}_boxes.txt"
        boxes.write_text("".join(f"{name}\t0\t0\t63\t63\n" for name in names))
    rows = [(f"val_{i}.JPEG", labels[i % classes]) for i in range(validation * classes)]
    for i, (name, _) in enumerate(rows):
        write_image(folder / "val" / "images" / name, 1 if i == 0 else 3)
    annotations = "".join(f"{name}\t{label}\t0\t0\t63\t63\n" for name, label in rows)
    (folder / "val" / "val_annotations.txt").write_text(annotations)
    (folder / "wnids.txt").write_text("\n".join(reversed(labels)) + "\n")
    words = [f"{label}\tthing {label[-1]}, object\n" for label in labels]
    (folder / "words.txt").write_text("".join(["n99999999\tnothing\n", *words]))
    return folder


def decoded(paths, label_of):
    return sorted(
        (tf.io.decode_jpeg(path.read_bytes(), channels=3).numpy().tobytes(), label_of(path))
        for path in paths
    )


@pytest.fixture
def folder(tmp_path):
    return write_tiny_imagenet(tmp_path)


def test_tiny_imagenet_from_a_folder(folder):
    made = load("tiny_imagenet", data_dir=folder, validation_size=2)
    assert (made.num_classes, made.input_shape) == (3, (64, 64, 3))
    assert (made.train_examples, made.validation_examples, made.test_examples) == (10, 2, 6)
    assert made.label_names == [f"thing {i}, object" for i in range(3)]
    train = decoded(folder.glob("train/*/images/*"), lambda path: int(path.name[8]))
    assert pixels_and_labels(made.train.concatenate(made.validation)) == train
    rows = (folder / "val" / "val_annotations.txt").read_text().splitlines()
    labels = {row.split("\t")[0]: int(row.split("\t")[1][-1]) for row in rows}
    test = decoded(folder.glob("val/images/*"), lambda path: labels[path.name])
    assert pixels_and_labels(made.test) == test


def test_tiny_imagenet_in_the_folder_above_and_at_32_pixels(folder):
    made = load("tiny_imagenet", data_dir=folder.parent, image_size=32)
    assert made.input_shape == (32, 32, 3)
    images = np.concatenate([x for x, _ in made.test.as_numpy_iterator()])
    assert images.shape == (6, 32, 32, 3)
    full = load("tiny_imagenet", data_dir=folder)
    blocks = np.concatenate([x for x, _ in full.test.as_numpy_iterator()])
    blocks = blocks.reshape(6, 32, 2, 32, 2, 3).mean((2, 4))
    assert np.corrcoef(images.ravel(), blocks.ravel())[0, 1] > 0.95


def test_tiny_imagenet_is_prepared_once(folder, monkeypatch):
    first = load("tiny_imagenet", data_dir=folder)
    monkeypatch.setattr(TinyImagenet, "_split_generators", None)
    second = load("tiny_imagenet", data_dir=folder)
    assert pixels_and_labels(first.test) == pixels_and_labels(second.test)
    assert first.label_names == second.label_names


def test_tiny_imagenet_folders_are_not_mixed_up(folder, tmp_path):
    other = write_tiny_imagenet(tmp_path / "other", seed=1)
    first, second = (load("tiny_imagenet", data_dir=path) for path in (folder, other))
    assert pixels_and_labels(first.test) != pixels_and_labels(second.test)

    annotations = folder / "val" / "val_annotations.txt"
    annotations.write_text(annotations.read_text().replace("n00000001", "n00000002"))
    changed = load("tiny_imagenet", data_dir=folder)
    assert {label for _, label in pixels_and_labels(changed.test)} == {0, 2}


def test_tiny_imagenet_without_lists_that_training_does_not_need(folder):
    (folder / "words.txt").unlink()
    for boxes in folder.glob("train/*/*_boxes.txt"):
        boxes.unlink()
    (folder / "train" / ".DS_Store").touch()
    made = load("tiny_imagenet", data_dir=folder)
    assert made.label_names == [f"n0000000{i}" for i in range(3)]


def test_the_archive_is_known_by_size_and_checksum():
    info = TinyImagenet.url_infos[URL]
    assert int(info.size) == 248_100_043
    assert info.checksum == "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821"


def test_tiny_imagenet_from_the_archive(folder, records, tmp_path, monkeypatch):
    def download(self, url):
        assert url == URL
        return tfds.core.Path(shutil.copytree(tmp_path, tmp_path / "unpacked"))

    monkeypatch.setattr(data, "_answers", lambda url: True)
    monkeypatch.setattr(tfds.download.DownloadManager, "download_and_extract", download)
    made = load("tiny_imagenet")
    assert (records / "tiny_imagenet" / "full").is_dir()
    assert made.label_names == [f"thing {i}, object" for i in range(3)]

    monkeypatch.undo()  # and once it is prepared, without a network
    monkeypatch.setenv("TFDS_DATA_DIR", "")
    again = load("tiny_imagenet", data_dir=records)
    assert again.fingerprint == made.fingerprint


def delete(path):
    def damage(folder):
        target = folder / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return damage


def write(path, content):
    return lambda folder: (folder / path).write_bytes(content)


def truncate(path):
    def damage(folder):
        target = folder / path
        target.write_bytes(target.read_bytes()[:500])

    return damage


def shrink(path):
    image = tf.io.encode_jpeg(np.zeros((32, 48, 3), "uint8")).numpy()
    return write(path, image)


TRAIN = "train/n00000001/images/n00000001_2.JPEG"
ANNOTATIONS = "val/val_annotations.txt"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (delete("wnids.txt"), "missing file .*wnids.txt$"),
        (write("wnids.txt", b"\n"), "wnids.txt lists no class"),
        (write("wnids.txt", b"n\xff"), "damaged file .*wnids.txt: "),
        (delete("train"), "missing folder .*train$"),
        (delete("train/n00000001"), "missing folder .*train/n00000001/images$"),
        (delete(TRAIN), f"missing file .*{TRAIN}, listed in .*n00000001_boxes.txt$"),
        (truncate(TRAIN), f"damaged image .*{TRAIN}$"),
        (write(TRAIN, b""), f"damaged image .*{TRAIN}$"),
        (shrink(TRAIN), f"{TRAIN} is 48x32, not 64x64$"),
        (
            lambda folder: (folder / "train" / "n12345678").mkdir(),
            r"unknown label 'n12345678', not in wnids.txt \(.*train/n12345678\)$",
        ),
        (delete(ANNOTATIONS), f"missing file .*{ANNOTATIONS}$"),
        (write(ANNOTATIONS, b""), f"damaged file .*{ANNOTATIONS}: it is empty$"),
        (write(ANNOTATIONS, b"val_0.JPEG\tn00000000\nval_1"), "no tab in line 2$"),
        (
            write(ANNOTATIONS, b"val_0.JPEG\tn12345678\t0\t0\t9\t9\n"),
            rf"unknown label 'n12345678', not in wnids.txt \(val_0.JPEG in .*{ANNOTATIONS}\)$",
        ),
        (delete("val/images"), "missing folder .*val/images$"),
        (
            delete("val/images/val_3.JPEG"),
            f"missing file .*val/images/val_3.JPEG, listed in .*{ANNOTATIONS}$",
        ),
        (truncate("val/images/val_3.JPEG"), "damaged image .*val/images/val_3.JPEG$"),
    ],
)
def test_a_broken_folder_is_reported_by_name(folder, records, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match="^TinyImageNet: .*" + message):
        load("tiny_imagenet", data_dir=folder)
    assert not list(records.rglob("dataset_info.json"))  # nothing half prepared is left


def test_a_class_without_images(folder):
    for path in [*folder.glob("train/n00000001/images/*"), *folder.glob("train/n00000001/*.txt")]:
        path.unlink()
    with pytest.raises(ValueError, match="TinyImageNet: no image in .*train/n00000001/images$"):
        read_folder(folder)


def test_a_folder_that_is_none(tmp_path):
    message = r"^Argument `data_dir` must be a `tiny-imagenet-200` folder \(with .*Received: data_"
    with pytest.raises(ValueError, match=message):
        load("tiny_imagenet", data_dir=tmp_path)
