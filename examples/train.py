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

import dataclasses
import hashlib
import json
import pathlib
import sys
from typing import Annotated

from examples.training import checks, command_line, options
from examples.training.checks import Setting
from examples.training.errors import UsageError
from examples.training.recipes import Settings

PROGRAM = "python -m examples.train"
# A config is deeper than this by mistake, or to do harm.
DEEPEST = 50


@dataclasses.dataclass(frozen=True)
class Options:
    """What does not decide how a run ends."""

    data_dir: Annotated[
        pathlib.Path | None, Setting("folder of the data", unset="the library's own")
    ] = None
    optimizer_config: Annotated[
        pathlib.Path | None,
        Setting(
            "JSON that keras.optimizers.deserialize takes, in place of a name and arguments",
            metavar="FILE",
            file=True,
        ),
    ] = None
    output_dir: Annotated[
        pathlib.Path | None,
        Setting("the run's own folder", unset="runs/ and a name made of the settings"),
    ] = None
    keep_model: Annotated[bool, Setting("keep the trained model as model.keras")] = True
    verbose: Annotated[
        str,
        Setting(
            "progress: none, a bar, a line per epoch; auto is a bar on a terminal, else lines",
            choices=("auto", "0", "1", "2"),
        ),
    ] = "auto"


TRAINED = ("model", "width", "dataset")
IMAGES = ("image_size", "train_size", "validation_size", "augment")
RECIPE = ("epochs", "batch_size", "learning_rate", "drop_epoch", "drop_factor", "seed")
HOW = ("deterministic", "mixed_precision", "jit_compile", "steps_per_execution", "distribute")
WATCHED = ("monitor", "monitor_every", "test_every_epoch")
GROUPS = {
    "model and data": [
        *options.group(Settings, TRAINED),
        *options.group(Options, ["data_dir"]),
        *options.group(Settings, IMAGES),
    ],
    "recipe": [
        *options.group(Settings, ["optimizer"]),
        *options.group(Options, ["optimizer_config"]),
        *options.group(Settings, RECIPE),
    ],
    "running": options.group(Settings, HOW),
    "output": [
        *options.group(Options, ["output_dir", "keep_model"]),
        *options.group(Settings, WATCHED),
        *options.group(Options, ["verbose"]),
    ],
}


def parse(arguments=None):
    """Reads the command line.

    Returns:
        `(settings, options)`: what decides the result, and what does not.

    Raises:
        UsageError: If an option is wrong.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # The optimizer's name says which options there are besides. What can be said without Keras,
    # whose import takes seconds, is said first.
    values = options.read(PROGRAM, __doc__, GROUPS, arguments, partly=True)
    config = _read_config(values["optimizer_config"])
    if not {"-h", "--help"} & set(arguments):
        _settings(values, {}, config)
    fields = []
    if config is None:
        fields = _optimizer_fields(values["optimizer"])
    else:
        _refuse_beside_config(arguments)
    groups = GROUPS | {values["optimizer"]: fields}
    where = f"with optimizer {values['optimizer']}" if config is None else ""
    values = options.read(PROGRAM, __doc__, groups, arguments, where=where)
    given = {f.name: values[f.name] for f in fields if values[f.name] != f.default}
    settings = _settings(values, given, config)
    chosen = Options(**{field.name: values[field.name] for field in dataclasses.fields(Options)})
    if chosen.output_dir is None:
        chosen = dataclasses.replace(chosen, output_dir=default_output_dir(settings))
    return settings, chosen


def _settings(values, optimizer_arguments, optimizer_config):
    return Settings(
        **{name: values[name] for name in checks.fields(Settings)},
        optimizer_arguments=optimizer_arguments,
        optimizer_config=optimizer_config,
    )


def _optimizer_fields(name):
    from examples.training.recipes import optimizer_class, optimizer_fields

    return optimizer_fields(optimizer_class(name))


def _read_config(path):
    if path is None:
        return None
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise checks.refused("optimizer_config", f"a JSON file ({error})", path) from error
    if not (
        isinstance(config, dict)
        and isinstance(config.get("class_name"), str)
        and isinstance(config.get("config"), dict)
    ):
        allowed = "what keras.optimizers.serialize gives, with a `class_name` and a `config`"
        raise checks.refused("optimizer_config", allowed, path)
    if _depth(config) > DEEPEST:
        raise checks.refused("optimizer_config", f"nested at most {DEEPEST} deep", path)
    return config


def _depth(value):
    """How many lists and dictionaries are inside one another, up to one more than `DEEPEST`."""
    level, depth = [value], 0
    while level and depth <= DEEPEST:
        depth += 1
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return depth


def _refuse_beside_config(arguments):
    for argument in arguments:
        option = argument.partition("=")[0].replace("_", "-")
        if option in ("--optimizer", "--learning-rate"):
            raise UsageError(f"{option} cannot be given beside --optimizer-config, which sets it")


def default_output_dir(settings):
    """A folder that the same settings always get, and other settings never."""
    digest = hashlib.sha256(json.dumps(settings.as_dict(), sort_keys=True).encode()).hexdigest()
    parts = (settings.dataset, settings.model, settings.optimizer, f"seed{settings.seed}")
    return pathlib.Path("runs") / "-".join([*parts, digest[:8]])


def main(arguments=None):
    """Runs the command line and returns its exit status."""
    return command_line.run(
        PROGRAM,
        lambda: _train(*parse(arguments)),
        "the same command goes on after the last epoch",
    )


def _train(settings, chosen):
    from examples.training import run

    verbose = chosen.verbose
    if verbose == "auto":
        verbose = 1 if sys.stdout.isatty() else 2
    record = run.train(
        settings,
        chosen.output_dir,
        data_dir=chosen.data_dir,
        verbose=int(verbose),
        keep_model=chosen.keep_model,
    )
    _summarise(record, chosen.output_dir / run.RECORD)
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
