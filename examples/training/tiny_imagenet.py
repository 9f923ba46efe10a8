"""TinyImageNet for tensorflow_datasets, from the archive or from a folder that is already there.

TinyImageNet (Stanford CS231n) is a subset of ImageNet: 200 classes, 64x64 JPEGs, 500 training and
50 labelled validation images per class. Its 10,000 test images have no labels and are not used.
"""

import dataclasses
import functools
import hashlib
import pathlib

import tensorflow as tf
import tensorflow_datasets as tfds

URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
SIDE = 64


@dataclasses.dataclass(frozen=True)
class Folder:
    """What a `tiny-imagenet-200` folder holds: its classes and the label of every image.

    Args:
        path: the folder.
        words: class (WordNet id) to its description, for every class, sorted.
        train, validation: image file to class.
    """

    path: pathlib.Path
    words: dict[str, str]
    train: dict[pathlib.Path, str]
    validation: dict[pathlib.Path, str]

    @functools.cached_property
    def key(self):
        """Short name of the content: changes with the classes, the labels and the file sizes."""
        digest = hashlib.sha256(repr(self.words).encode())
        for path, label in [*self.train.items(), *self.validation.items()]:
            name = path.relative_to(self.path).as_posix()
            digest.update(f"{name} {label} {path.stat().st_size}\n".encode())
        return digest.hexdigest()[:12]


def read_folder(path):
    """Lists a `tiny-imagenet-200` folder, which may hold fewer classes or images than the original.

    Args:
        path: folder with `wnids.txt`, `train/<class>/images` and `val/val_annotations.txt`.

    Returns:
        A `Folder`.

    Raises:
        ValueError: if a file that the folder's own lists name is missing, or a class is not in
            `wnids.txt`. The message names it.
    """
    path = pathlib.Path(path)
    words = _read_words(path)
    for folder in _list(path / "train"):
        _check_label(folder.name, words, folder)
    train = {image: label for label in words for image in _train_images(path / "train" / label)}
    annotations = path / "val" / "val_annotations.txt"
    images = path / "val" / "images"
    rows = _read_rows(annotations)
    _check_listed(images, (name for name, _ in rows), _list(images), annotations)
    for name, label in rows:
        _check_label(label, words, f"{name} in {annotations}")
    return Folder(path, words, train, {images / name: label for name, label in rows})


def _read_words(path):
    """The classes of `wnids.txt` and what `words.txt`, where there is one, says of them."""
    words = {label: label for label in sorted(_read_text(path / "wnids.txt").split())}
    if not words:
        raise ValueError(f"TinyImageNet: {path / 'wnids.txt'} lists no class.")
    if (path / "words.txt").is_file():
        for label, description in _read_rows(path / "words.txt"):
            if label in words:
                words[label] = description
    return words


def _train_images(folder):
    images = _list(folder / "images")
    boxes = folder / f"{folder.name}_boxes.txt"
    if boxes.is_file():  # it has a line for every image of the class
        names = (name for name, _ in _read_rows(boxes))
        _check_listed(folder / "images", names, images, boxes)
    if not images:
        raise ValueError(f"TinyImageNet: no image in {folder / 'images'}")
    return images


def _read_text(path):
    if not path.is_file():
        raise ValueError(f"TinyImageNet: missing file {path}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"TinyImageNet: damaged file {path}: {error}") from error


def _read_rows(path):
    """The first two columns of a table."""
    rows = [tuple(line.split("\t")[:2]) for line in _read_text(path).splitlines()]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2:
            raise ValueError(f"TinyImageNet: damaged file {path}: no tab in line {number}")
    if not rows:
        raise ValueError(f"TinyImageNet: damaged file {path}: it is empty")
    return rows


def _list(path):
    """The content of a folder, sorted, without what systems hide in it, such as `.DS_Store`."""
    if not path.is_dir():
        raise ValueError(f"TinyImageNet: missing folder {path}")
    return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))


def _check_label(label, words, where):
    if label not in words:
        raise ValueError(f"TinyImageNet: unknown label {label!r}, not in wnids.txt ({where})")


def _check_listed(folder, names, images, listing):
    found = {image.name for image in images}
    for name in names:
        if name not in found:
            raise ValueError(f"TinyImageNet: missing file {folder / name}, listed in {listing}")


def _read_image(path):
    """The bytes of a JPEG that decodes to 64x64."""
    content = path.read_bytes()
    try:
        shape = tuple(tf.io.decode_jpeg(content, channels=3).shape)
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(f"TinyImageNet: damaged image {path}") from error
    if shape != (SIDE, SIDE, 3):
        raise ValueError(f"TinyImageNet: {path} is {shape[1]}x{shape[0]}, not {SIDE}x{SIDE}")
    return content


@dataclasses.dataclass(eq=False)
class TinyImagenetConfig(tfds.core.BuilderConfig):
    """Where the images come from: the archive, or `folder`."""

    # Left out of the representation, which tensorflow_datasets logs.
    folder: Folder | None = dataclasses.field(default=None, repr=False)


class TinyImagenet(tfds.core.GeneratorBasedBuilder):
    """TinyImageNet; `TinyImagenet()` downloads it, `TinyImagenet.from_folder` reads a folder.

    Example:

    >>> builder = TinyImagenet.from_folder("tiny-imagenet-200")    # doctest: +SKIP
    >>> builder.download_and_prepare()                             # doctest: +SKIP
    >>> train = builder.as_dataset(split="train")                  # doctest: +SKIP
    """

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [TinyImagenetConfig(name="full", description="The downloaded archive.")]

    @classmethod
    def from_folder(cls, path, data_dir=None):
        """A builder for an existing `tiny-imagenet-200` folder.

        Its records are kept under a name made of the folder's content, so that another folder, or
        the same one after a change, is prepared anew.
        """
        folder = read_folder(path)
        config = TinyImagenetConfig(name=f"folder-{folder.key}", folder=folder)
        return cls(config=config, data_dir=data_dir)

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description="A subset of ImageNet: 200 classes of 64x64 images.",
            homepage="http://cs231n.stanford.edu/",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(SIDE, SIDE, 3), encoding_format="jpeg"),
                    "label": tfds.features.ClassLabel(),
                }
            ),
            supervised_keys=("image", "label"),
            metadata=tfds.core.MetadataDict(),
        )

    def _split_generators(self, dl_manager):
        folder = self.builder_config.folder
        if folder is None:
            folder = read_folder(dl_manager.download_and_extract(URL) / "tiny-imagenet-200")
        self.info.features["label"].names = list(folder.words)
        self.info.metadata["words"] = list(folder.words.values())
        return {
            "train": self._generate_examples(folder.train),
            "validation": self._generate_examples(folder.validation),
        }

    def _generate_examples(self, images):
        for path, label in images.items():
            yield path.name, {"image": _read_image(path), "label": label}
