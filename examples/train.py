"""Trains one model on one data set: the paper's experiment, with every setting an option.

examples:
  the paper's experiment (a GPU, about a day on a CPU):
    python -m examples.train --model resnet18 --dataset cifar10 --optimizer AdamNorm
  a first look without a download, half a minute on a CPU:
    python -m examples.train --model cnn --dataset digits --epochs 5
  the plain optimizer, with the norms that the correction would see:
    python -m examples.train --optimizer Adam --monitor epoch
  the released code's AdaBeliefNorm; --help shows the arguments of the optimizer that is named:
    python -m examples.train --optimizer AdaBeliefNorm --corrected-moments both --epsilon-root 1e-5
  all GPUs of the machine, fast and in half the memory:
    python -m examples.train --distribute --mixed-precision bfloat16 --steps-per-execution 23

Started again with the same options, a run that was stopped goes on after its last finished epoch,
and a finished one is left as it is. The output folder then holds record.json (settings, curves,
results, versions, device), metrics.csv, tensorboard/ and the trained model.keras.

exit status: 0 trained or done before, 1 could not go on (the last good state is kept), 2 wrong
options, 130 interrupted.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import sys

from examples.training.command_line import DefaultsHelp, Parser, complain
from examples.training.errors import UsageError
from examples.training.recipes import JIT_COMPILE, MONITOR, PRECISIONS, Settings

PROGRAM = "python -m examples.train"
_TYPE = r"(?i)(an? )?(float|int|integer|bool|boolean|string|positive|one of)\b"


def run_parser():
    """The options of the run. Those of the optimizer come on top, in `optimizer_options`."""
    parser = Parser(
        PROGRAM,
        __doc__,
        usage=f"{PROGRAM} [options]",
        formatter_class=DefaultsHelp,
        add_help=False,
    )
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}

    def option(group, name, **kwargs):
        flag = "--" + name.replace("_", "-")
        if isinstance(defaults[name], bool):
            kwargs.setdefault("action", "store_true")
        group.add_argument(flag, default=defaults[name], **kwargs)

    what = parser.add_argument_group("what is trained")
    what.add_argument(
        "-h", "--help", action="store_true", default=None, help="show this text and exit"
    )
    option(what, "model", help="vgg16, resnet18, resnet50, resnet8 or cnn")
    option(
        what,
        "width",
        type=int,
        help="filters of the first layer (default: the model's own); below 16, a ResNet on "
        "64x64 images can crash oneDNN, the CPU library of TensorFlow 2.21",
    )
    option(what, "dataset", help="cifar10, cifar100, tiny_imagenet, digits or synthetic")
    what.add_argument("--data-dir", help="folder of the data (default: the library's own)")
    option(what, "image_size", type=int, help="pixels a side (default: the data set's own)")
    option(what, "train_size", type=int, help="use that many training images (default: all)")
    option(
        what,
        "validation_size",
        type=int,
        help="training images held out for validation, 0 for none (default: a tenth)",
    )
    option(
        what,
        "augment",
        action=argparse.BooleanOptionalAction,
        help="shift and mirror training images",
    )

    recipe = parser.add_argument_group("recipe")
    option(recipe, "optimizer", help="ours, or one of keras.optimizers by its name")
    recipe.add_argument(
        "--optimizer-config",
        metavar="FILE",
        help="JSON that keras.optimizers.deserialize takes, in place of a name and arguments",
    )
    option(recipe, "epochs", type=int, help="passes over the training images")
    option(recipe, "batch_size", type=int, help="images per step, over all devices")
    option(recipe, "learning_rate", type=float, help="learning rate of the first epochs")
    option(
        recipe,
        "drop_epoch",
        type=int,
        help="multiply the rate by --drop-factor after that many epochs (default: after four "
        "fifths of them, the paper's 80 of 100)",
    )
    option(recipe, "drop_factor", type=float, help="what the rate is multiplied by")
    option(recipe, "seed", type=int, help="of weights, data order, augmentation and dropout")

    how = parser.add_argument_group("how it runs")
    option(how, "deterministic", help="same seed, same machine: same weights; slower on a GPU")
    option(how, "mixed_precision", choices=list(PRECISIONS), help="lower precision on a GPU or TPU")
    option(
        how,
        "jit_compile",
        choices=list(JIT_COMPILE),
        help="XLA; auto is Keras' choice, on where there is one GPU",
    )
    option(
        how,
        "steps_per_execution",
        type=int,
        help="steps between two returns to Python, rounded down to a divisor of an epoch's; "
        "above 1 it leaves no norms to monitor",
    )
    option(how, "distribute", help="all GPUs (MirroredStrategy); the CPU's devices without one")

    out = parser.add_argument_group("what is kept")
    out.add_argument(
        "--output-dir",
        type=pathlib.Path,
        help="the run's own folder (default: runs/ and a name made of the settings)",
    )
    out.add_argument(
        "--keep-model",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the trained model as model.keras",
    )
    option(
        out,
        "monitor",
        choices=list(MONITOR),
        help="gradient norms before and after the correction: auto, per epoch if the optimizer "
        "keeps them; epoch, for any optimizer; step, per step and variable as well",
    )
    option(out, "monitor_every", type=int, metavar="N", help="observe every N-th step only")
    option(
        out,
        "test_every_epoch",
        help="score the test set after each epoch, for the paper's best-epoch accuracy",
    )
    out.add_argument(
        "--verbose",
        choices=["auto", "0", "1", "2"],
        default="auto",
        help="progress: none, a bar, a line per epoch; auto is a bar on a terminal, else lines",
    )
    return parser


def optimizer_options(parser, name):
    """Adds the arguments that the named optimizer's signature has, and returns their names."""
    import keras

    from examples.training.recipes import optimizer_arguments, optimizer_classes

    classes = optimizer_classes()
    if name not in classes:
        parser.error(f"--optimizer must be one of {', '.join(sorted(classes))}. Received: {name}")
    cls = classes[name]
    texts = _documented(keras.optimizers.Adam) | _documented(cls)
    group = parser.add_argument_group(f"arguments of {name}")
    names = []
    for argument, default in optimizer_arguments(cls).items():
        if argument == "learning_rate":
            continue
        names.append(argument)
        flag = "--" + argument.replace("_", "-")
        text = texts.get(argument, "").replace("%", "%%")
        # What is not given stays out of the settings; the optimizer has its own default.
        kwargs = {"default": argparse.SUPPRESS, "help": f"{text} (default: {default})"}
        if isinstance(default, bool):
            kwargs["action"] = argparse.BooleanOptionalAction
        elif isinstance(default, (int, float)):
            kwargs["type"] = type(default)
        elif default is None:
            kwargs["type"] = _number
        group.add_argument(flag, **kwargs)
    return names


def _number(text):
    """A number for an argument that defaults to None; a whole one stays whole."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number. Received: {text}") from None
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else number


def _documented(cls):
    """What a class' docstring says on each argument: the first sentence behind its type."""
    text = (cls.__doc__ or "").partition("Args:")[2].partition("\n\n")[0]
    entries = re.split(r"\n +(\w+): ", "\n" + text)
    texts = {}
    for name, body in zip(entries[1::2], entries[2::2], strict=True):
        sentences = re.split(r"(?<=[.`]) (?=[A-Z])", " ".join(body.split()))
        told = [s for s in sentences if not re.match(_TYPE, s) and not s.startswith("Defaults to")]
        texts[name] = (told or sentences)[0].rstrip(".")
    return texts


def parse(arguments=None):
    """Reads the command line.

    Returns:
        `(settings, options)`: what decides the result, and what does not.
    """
    parser = run_parser()
    # Numbers are checked before Keras is imported, which takes seconds.
    options, _ = parser.parse_known_args(arguments)
    names = []
    settings = None
    try:
        if not options.help:
            settings = _settings(options, {}, _read_config(options.optimizer_config))
        if options.optimizer_config is None:
            names = optimizer_options(parser, options.optimizer)
        if options.help:
            parser.print_help()
            sys.exit(0)
        options, unknown = parser.parse_known_args(arguments)
        if unknown:
            parser.error(
                f"there is no option {' '.join(unknown)} with optimizer {options.optimizer}: "
                "see --help"
            )
        if options.optimizer_config is not None:
            _refuse_beside_config(sys.argv[1:] if arguments is None else arguments)
        given = {name: getattr(options, name) for name in names if hasattr(options, name)}
        settings = dataclasses.replace(settings, optimizer_arguments=given)
    except ValueError as error:
        parser.error(str(error))
    if options.output_dir is None:
        options.output_dir = default_output_dir(settings)
    return settings, options


def _settings(options, optimizer_arguments, optimizer_config):
    taken = {field.name for field in dataclasses.fields(Settings)}
    taken -= {"optimizer_arguments", "optimizer_config"}
    return Settings(
        **{name: getattr(options, name) for name in taken},
        optimizer_arguments=optimizer_arguments,
        optimizer_config=optimizer_config,
    )


def _read_config(path):
    if path is None:
        return None
    try:
        config = json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--optimizer-config must be a JSON file. Received: {path} ({error})"
        ) from error
    if not isinstance(config, dict) or not isinstance(config.get("class_name"), str):
        raise ValueError(
            "--optimizer-config must hold what keras.optimizers.serialize gives, with a "
            f"`class_name` and a `config`. Received: {path}"
        )
    return config


def _refuse_beside_config(arguments):
    for argument in arguments:
        if argument.partition("=")[0] in ("--optimizer", "--learning-rate"):
            raise ValueError(f"{argument} cannot be given beside --optimizer-config, which sets it")


def default_output_dir(settings):
    """A folder that the same settings always get, and other settings never."""
    digest = hashlib.sha256(json.dumps(settings.as_dict(), sort_keys=True).encode()).hexdigest()
    parts = (settings.dataset, settings.model, settings.optimizer, f"seed{settings.seed}")
    return pathlib.Path("runs") / "-".join([*parts, digest[:8]])


def main(arguments=None):
    """Runs the command line and returns its exit status."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    settings, options = parse(arguments)
    from examples.training import run

    verbose = options.verbose
    if verbose == "auto":
        verbose = 1 if sys.stdout.isatty() else 2
    try:
        record = run.train(
            settings,
            options.output_dir,
            data_dir=options.data_dir,
            verbose=int(verbose),
            keep_model=options.keep_model,
        )
    except UsageError as error:
        return complain(PROGRAM, error, 2)
    except run.RunError as error:
        return complain(PROGRAM, error, 1)
    except KeyboardInterrupt:
        return complain(PROGRAM, "interrupted; the same command goes on after the last epoch", 130)
    _summarise(record, options.output_dir / run.RECORD)
    return 0


def _summarise(record, path):
    test = record["test"]
    print(f"Test accuracy after the last epoch: {test['accuracy']:.2%}")
    if "best_epoch" in test:
        print(
            f"Best test accuracy, of epoch {test['best_epoch']}: {test['best_epoch_accuracy']:.2%} "
            "(chosen on the test set)"
        )
    if record["corrections"] is not None:
        fired, before, after = record["corrections"].values()
        print(f"Corrections that fired: {fired:.1%}; mean gradient norm {before:.4g}, ", end="")
        print(f"corrected {after:.4g}")
    print(f"{record['seconds']:.0f} s; {path}")


if __name__ == "__main__":
    sys.exit(main())
