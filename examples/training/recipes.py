"""The paper's recipe, as plain settings and functions. Nothing heavy is imported at the top.

    100 epochs, batches of 64, learning rate 1e-3 and 1e-4 after epoch 80,
    beta_1 = 0.9, beta_2 = 0.999, gamma = 0.95 (the defaults of the optimizers)

Dubey et al., "AdaNorm: Adaptive Gradient Norm Correction based Optimizer for CNNs", WACV 2023,
section 4. A shorter run keeps the proportions: its rate drops after four fifths of its epochs.
"""

import copy
import dataclasses
import inspect
import math

from examples.training.checks import check_integer
from examples.training.errors import UsageError

PRECISIONS = {"off": "float32", "float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}
JIT_COMPILE = {"auto": "auto", "on": True, "off": False}
MONITOR = ("auto", "epoch", "step", "off")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that decides how a run ends: two runs with equal settings are the same run.

    Args:
        model: A name of `examples.training.models.MODELS`. Defaults to `"resnet18"`.
        dataset: A name of `examples.training.data.DATASETS`. Defaults to `"cifar10"`.
        optimizer: A name of `optimizer_classes()`. Defaults to `"AdamNorm"`.
        optimizer_arguments: Dictionary of the optimizer's arguments that differ from its
            defaults, without the learning rate.
        optimizer_config: Dictionary that `keras.optimizers.deserialize` takes, in place of the
            two above and of `learning_rate`.
        epochs: Positive integer. Defaults to `100`.
        batch_size: Positive integer, over all devices. Defaults to `64`.
        learning_rate: Positive float, or `None` for that of `optimizer_config`. Defaults to
            `0.001`.
        drop_epoch: Integer of at least 1, or `None` for four fifths of the epochs. The rate
            drops after that many epochs.
        drop_factor: Positive float, what the rate is multiplied by. Defaults to `0.1`.
        seed: Integer of at least 0: initial weights, data order, augmentation, dropout.
        width: Positive integer, or `None` for the model's own.
        image_size, train_size, validation_size: Integers, or `None` for the data set's own.
        augment: Boolean, whether training images are shifted and mirrored.
        monitor: `"auto"` (norms per epoch if the optimizer keeps them), `"epoch"` (for every
            optimizer), `"step"` (per step and variable as well) or `"off"`.
        monitor_every: Positive integer, observe only steps that are a multiple of it.
        test_every_epoch: Boolean, whether the test set is scored after each epoch, not only
            after the last.
        deterministic: Boolean, whether the same machine gives the same weights.
        mixed_precision: `"off"`, `"float16"` or `"bfloat16"`.
        jit_compile: `"auto"`, `"on"` or `"off"`.
        steps_per_execution: Positive integer, steps between two returns to Python.
        distribute: Boolean, whether to train on all GPUs of the machine.

    Raises:
        UsageError: If an argument is out of its range.
    """

    model: str = "resnet18"
    dataset: str = "cifar10"
    optimizer: str = "AdamNorm"
    optimizer_arguments: dict = dataclasses.field(default_factory=dict)
    optimizer_config: dict | None = None
    epochs: int = 100
    batch_size: int = 64
    learning_rate: float | None = 1e-3
    drop_epoch: int | None = None
    drop_factor: float = 0.1
    seed: int = 0
    width: int | None = None
    image_size: int | None = None
    train_size: int | None = None
    validation_size: int | None = None
    augment: bool = True
    monitor: str = "auto"
    monitor_every: int = 1
    test_every_epoch: bool = False
    deterministic: bool = False
    mixed_precision: str = "off"
    jit_compile: str = "auto"
    steps_per_execution: int = 1
    distribute: bool = False

    def __post_init__(self):
        for name in ("epochs", "batch_size", "monitor_every", "steps_per_execution"):
            check_integer(name, getattr(self, name), 1)
        for name in ("width", "image_size", "train_size", "drop_epoch"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        check_integer("seed", self.seed, 0)
        if self.validation_size is not None:
            check_integer("validation_size", self.validation_size, 0)
        for name in ("learning_rate", "drop_factor"):
            self._check_positive(name)
        self._check_choice("mixed_precision", PRECISIONS)
        self._check_choice("jit_compile", JIT_COMPILE)
        self._check_choice("monitor", MONITOR)
        if self.optimizer_config is not None:
            object.__setattr__(self, "optimizer", self.optimizer_config["class_name"])
            object.__setattr__(self, "learning_rate", None)
        elif self.learning_rate is None:
            raise UsageError("Argument `learning_rate` must be a positive number. Received: None")
        if self.monitor in ("epoch", "step") and self.steps_per_execution > 1:
            raise UsageError(
                f"Argument `monitor` must be 'auto' or 'off' when steps_per_execution is above 1. "
                f"Received: monitor={self.monitor!r}"
            )
        if self.deterministic and self.jit_compile == "on":
            raise UsageError(
                "Argument `jit_compile` must be 'auto' or 'off' in a deterministic run, which "
                "Keras does not compile. Received: jit_compile='on'"
            )
        if self.drop_epoch is None:
            object.__setattr__(self, "drop_epoch", max(1, round(0.8 * self.epochs)))

    def _check_positive(self, name):
        value = getattr(self, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(
                f"Argument `{name}` must be a positive number. Received: {name}={value}"
            )

    def _check_choice(self, name, allowed):
        value = getattr(self, name)
        if value not in allowed:
            raise UsageError(
                f"Argument `{name}` must be one of {', '.join(allowed)}. Received: {name}={value}"
            )

    def as_dict(self):
        """The settings as JSON can hold them."""
        return dataclasses.asdict(self)


def learning_rate_at(epoch, base, drop_epoch, drop_factor=0.1):
    """The learning rate of an epoch, counted from 0: `base`, and less after `drop_epoch` epochs.

    >>> learning_rate_at(79, 1e-3, 80), learning_rate_at(80, 1e-3, 80)
    (0.001, 0.0001)
    """
    return base * drop_factor if epoch >= drop_epoch else base


def optimizer_classes():
    """The optimizers that can be named: this package's, and Keras' own, as `{name: class}`."""
    import keras

    import keras_adanorm

    found = {}
    for module in (keras.optimizers, keras_adanorm):
        for name, value in vars(module).items():
            if (
                inspect.isclass(value)
                and issubclass(value, keras.optimizers.Optimizer)
                and value is not keras.optimizers.Optimizer
                and "learning_rate" in optimizer_arguments(value)
            ):
                found[name] = value
    return found


def optimizer_arguments(cls):
    """The arguments of an optimizer and their defaults, those of its base classes included.

    An argument without a default (the optimizer inside a wrapper) leaves nothing to be named on
    a command line, so such a class has none.
    """
    arguments = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if parameter.default is parameter.empty and base is cls:
                return {}
            arguments.setdefault(parameter.name, parameter.default)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    arguments.pop("name", None)
    return arguments


def build_optimizer(settings):
    """The optimizer that the settings name.

    Raises:
        UsageError: If there is no such optimizer or it refuses its arguments.
    """
    import keras

    import keras_adanorm  # noqa: F401  (registers its classes for deserialization)

    if settings.optimizer_config is not None:
        try:
            return keras.optimizers.deserialize(copy.deepcopy(settings.optimizer_config))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"Keras cannot take the optimizer's config: {error}") from error
    classes = optimizer_classes()
    if settings.optimizer not in classes:
        raise UsageError(
            f"Argument `optimizer` must be one of {', '.join(sorted(classes))}. "
            f"Received: optimizer={settings.optimizer}"
        )
    cls = classes[settings.optimizer]
    allowed = optimizer_arguments(cls)
    for name in settings.optimizer_arguments:
        if name not in allowed:
            raise UsageError(f"{settings.optimizer} has no argument `{name}`. It has {allowed}")
    return cls(learning_rate=float(settings.learning_rate), **settings.optimizer_arguments)


def describe_optimizer(optimizer):
    """The optimizer as `keras.optimizers.deserialize` takes it, without its counted name."""
    import keras

    described = keras.optimizers.serialize(optimizer)
    described["config"].pop("name", None)
    return described


def compile_model(model, settings, optimizer, steps_per_execution=1):
    """Compiles a classifier that returns logits, as every run of the examples trains it."""
    import keras

    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=JIT_COMPILE[settings.jit_compile],
        steps_per_execution=steps_per_execution,
    )
    # Built here, where the devices are known, so that a checkpoint finds the state to restore.
    model.optimizer.build(model.trainable_variables)
