"""The paper's recipe, as plain settings and functions. Nothing heavy is imported at the top.

    100 epochs, batches of 64, learning rate 1e-3 and 1e-4 after epoch 80,
    beta_1 = 0.9, beta_2 = 0.999, gamma = 0.95 (the defaults of the optimizers)

Dubey et al., "AdaNorm: Adaptive Gradient Norm Correction based Optimizer for CNNs", WACV 2023,
section 4. A shorter run keeps the proportions: its rate drops after four fifths of its epochs.
"""

import contextlib
import copy
import dataclasses
import inspect
from typing import Annotated

from examples.training import checks
from examples.training.checks import Setting
from examples.training.errors import UsageError

MODELS = ("vgg16", "resnet18", "resnet50", "resnet8", "cnn")
DATASETS = ("cifar10", "cifar100", "tiny_imagenet", "digits", "synthetic")
PRECISIONS = {"off": "float32", "float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}
JIT_COMPILE = {"auto": "auto", "on": True, "off": False}
MONITOR = ("auto", "epoch", "step", "off")
LARGEST_SEED = 2**32 - 1  # NumPy's


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that decides how a run ends: two runs with equal settings are the same run.

    What a field means, and what it may be, stands beside it. `optimizer_arguments` holds the
    optimizer's arguments that differ from its defaults, without the learning rate;
    `optimizer_config` is what `keras.optimizers.deserialize` takes, in place of the name, the
    arguments and the learning rate.

    Raises:
        UsageError: If a value is not allowed.
    """

    model: Annotated[str, Setting("the network", choices=MODELS)] = "resnet18"
    dataset: Annotated[str, Setting("the images", choices=DATASETS)] = "cifar10"
    optimizer: Annotated[
        str, Setting("one of this package, or one of keras.optimizers by its name")
    ] = "AdamNorm"
    optimizer_arguments: dict = dataclasses.field(default_factory=dict)
    optimizer_config: dict | None = None
    epochs: Annotated[int, Setting("passes over the training images", low=1)] = 100
    batch_size: Annotated[int, Setting("images per step, over all devices", low=1)] = 64
    learning_rate: Annotated[
        float | None, Setting("learning rate of the first epochs", above=0)
    ] = 1e-3
    drop_epoch: Annotated[
        int | None,
        Setting(
            "multiply the rate by --drop-factor after that many epochs",
            low=1,
            unset="after four fifths of them, the paper's 80 of 100",
        ),
    ] = None
    drop_factor: Annotated[float, Setting("factor for the rate after the drop", above=0)] = 0.1
    seed: Annotated[
        int,
        Setting("decides weights, data order, augmentation and dropout", low=0, high=LARGEST_SEED),
    ] = 0
    width: Annotated[
        int | None,
        Setting(
            "filters of the first layer; below 16, a ResNet on 64x64 images can crash oneDNN, the "
            "CPU library of TensorFlow 2.21",
            low=1,
            high=4096,
            unset="the model's own",
        ),
    ] = None
    image_size: Annotated[
        int | None,
        Setting("height and width in pixels", low=1, high=4096, unset="the data set's own"),
    ] = None
    train_size: Annotated[
        int | None, Setting("use that many training images", low=1, unset="all")
    ] = None
    validation_size: Annotated[
        int | None,
        Setting("training images held out for validation, 0 for none", low=0, unset="a tenth"),
    ] = None
    augment: Annotated[bool, Setting("shift and mirror training images")] = True
    monitor: Annotated[
        str,
        Setting(
            "gradient norms before and after the correction: auto, per epoch if the optimizer "
            "keeps them; epoch, for any optimizer; step, per step and variable as well",
            choices=MONITOR,
        ),
    ] = "auto"
    monitor_every: Annotated[int, Setting("observe only every N-th step", low=1, metavar="N")] = 1
    test_every_epoch: Annotated[
        bool,
        Setting("score the test set after each epoch, for the paper's best-epoch accuracy"),
    ] = False
    deterministic: Annotated[
        bool, Setting("same seed, same machine: same weights; slower on a GPU")
    ] = False
    mixed_precision: Annotated[
        str, Setting("lower precision on a GPU or TPU", choices=tuple(PRECISIONS))
    ] = "off"
    jit_compile: Annotated[
        str,
        Setting(
            "compile with XLA; auto is Keras' choice, which is on with one GPU",
            choices=tuple(JIT_COMPILE),
        ),
    ] = "auto"
    steps_per_execution: Annotated[
        int,
        Setting(
            "steps without a return to Python, rounded down to a divisor of an epoch's; above 1, "
            "no norms can be monitored",
            low=1,
        ),
    ] = 1
    distribute: Annotated[
        bool, Setting("train on all GPUs (MirroredStrategy), or the CPU's devices without one")
    ] = False

    def __post_init__(self):
        if self.optimizer_config is not None:
            object.__setattr__(self, "optimizer", self.optimizer_config["class_name"])
            object.__setattr__(self, "learning_rate", None)
        elif self.learning_rate is None:
            raise checks.refused("learning_rate", "a number above 0", None)
        checks.check(self)
        if self.monitor in ("epoch", "step") and self.steps_per_execution > 1:
            allowed = "'auto' or 'off' when steps_per_execution is above 1"
            raise checks.refused("monitor", allowed, self.monitor)
        if self.deterministic and self.jit_compile == "on":
            allowed = "'auto' or 'off' in a deterministic run, which Keras does not compile"
            raise checks.refused("jit_compile", allowed, self.jit_compile)
        if self.distribute and self._accumulates():
            raise UsageError(
                "Argument `distribute` must be false with `gradient_accumulation_steps`, which "
                "Keras cannot accumulate under a strategy. Take a larger `batch_size` instead: "
                "it has the same effect. Received: distribute=True"
            )
        if self.drop_epoch is None:
            object.__setattr__(self, "drop_epoch", max(1, round(0.8 * self.epochs)))

    def _accumulates(self):
        arguments = self.optimizer_arguments
        if self.optimizer_config is not None:
            arguments = self.optimizer_config.get("config")
        return isinstance(arguments, dict) and bool(arguments.get("gradient_accumulation_steps"))

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

    classes = {}
    for module in (keras.optimizers, keras_adanorm):
        for name, value in vars(module).items():
            if (
                inspect.isclass(value)
                and issubclass(value, keras.optimizers.Optimizer)
                and value is not keras.optimizers.Optimizer
                # The base classes of variants have no algorithm of their own.
                and getattr(value, "algorithm", None) is not keras_adanorm.StepOptimizer.algorithm
                and "learning_rate" in optimizer_arguments(value)
            ):
                classes[name] = value
    return classes


def optimizer_class(name):
    """The optimizer of that name; raises a UsageError where there is none."""
    classes = optimizer_classes()
    if name not in classes:
        raise checks.refused("optimizer", f"one of {', '.join(sorted(classes))}", name)
    return classes[name]


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


# What Keras takes for the arguments whose default, None, says nothing of their type, and the ranges
# that its optimizers do not check themselves.
_KERAS_ARGUMENTS = {
    "weight_decay": (float, {"low": 0}),
    "clipnorm": (float, {"above": 0}),
    "clipvalue": (float, {"above": 0}),
    "global_clipnorm": (float, {"above": 0}),
    "loss_scale_factor": (float, {"above": 0}),
    "ema_overwrite_frequency": (int, {"low": 1}),
    "gradient_accumulation_steps": (int, {"low": 2}),
    "adam_lr_ratio": (float, {"above": 0}),  # its default is 1, of no float's type
    "max_correction": (float, {"low": 1}),
}


def optimizer_fields(cls):
    """The arguments of an optimizer's class, but for the learning rate, as options.

    Returns:
        List of `checks.Field`. Their default is `None`, but for booleans: the class has its own.
    """
    import keras

    texts = _documented(keras.optimizers.Adam) | _documented(cls)
    fields = []
    for name, default in optimizer_arguments(cls).items():
        value_type, limits = _KERAS_ARGUMENTS.get(name, (type(default), {}))
        if name == "learning_rate" or value_type not in (int, float, bool, str):
            continue
        text = texts.get(name, "")
        unset = "" if "default" in text.lower() else str(default)
        setting = Setting(text or "see the documentation of Keras", unset=unset, **limits)
        unset_value = default if value_type is bool else None
        fields.append(
            checks.Field(name, setting, value_type, value_type is not bool, False, unset_value)
        )
    return fields


def _documented(cls):
    """What a class' docstring says on each argument."""
    import docstring_parser

    said = docstring_parser.parse(cls.__doc__ or "").params
    return {param.arg_name: " ".join((param.description or "").split()) for param in said}


def build_optimizer(settings):
    """The optimizer that the settings name.

    Raises:
        UsageError: If there is no such optimizer or it refuses its arguments.
    """
    import keras

    import keras_adanorm  # noqa: F401  (registers its classes for deserialization)

    if settings.optimizer_config is not None:
        with _config_taken():
            optimizer = keras.optimizers.deserialize(copy.deepcopy(settings.optimizer_config))
            if not isinstance(optimizer, keras.optimizers.Optimizer):
                raise TypeError(f"it makes no optimizer of {settings.optimizer!r:.100}")
        return optimizer
    cls = optimizer_class(settings.optimizer)
    allowed = optimizer_arguments(cls)
    fields = {field.name: field for field in optimizer_fields(cls)}
    for name, value in settings.optimizer_arguments.items():
        if name not in allowed:
            raise UsageError(
                f"{settings.optimizer} has no argument `{name}`. It has {', '.join(allowed)}."
            )
        if name in fields:
            fields[name].check(value)
    return cls(learning_rate=float(settings.learning_rate), **settings.optimizer_arguments)


def try_update(optimizer):
    """Updates a variable once: Keras looks at many values of a config in an update only.

    Raises:
        UsageError: If that fails.
    """
    import keras

    with _config_taken():
        weight = keras.Variable([1.0, 2.0], name="weight")
        optimizer.build([weight])
        optimizer.apply([keras.ops.ones_like(weight)], [weight])


@contextlib.contextmanager
def _config_taken():
    try:
        yield
    except Exception as error:  # whatever a wrong config makes of Keras
        reason = " ".join(str(error).split())[:300]
        raise UsageError(f"Keras cannot take the optimizer's config: {reason}") from error


def named_optimizer(settings):
    """The optimizer of a run in words: `"AdamNorm(gamma=0.0)"`."""
    arguments = settings.optimizer_arguments
    told = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return f"{settings.optimizer}({told})" if told else settings.optimizer


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
