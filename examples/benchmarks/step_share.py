"""Measures which share of a training step the optimizer takes, in the networks of the study.

examples:
  python -m examples.benchmarks.step_share              # some minutes; writes the record
  python -m examples.benchmarks.step_share --quick      # tiny, two rounds, no record

A step computes the loss, its gradients and the update, in one graph, as `model.fit` does. The same
graph without the update gives the gradients back. In each round every optimizer runs a few steps,
and just before them the graph without one does, so that whatever else the machine does affects
both. The share is what the update adds, over the whole step: the median over the rounds, with its
quartiles. Where it is below what the machine's noise lets one see, it may come out negative.

exit status: 0 measured, 1 could not go on, 2 wrong options, 130 interrupted.
"""

import dataclasses
import json
import pathlib
import sys
import time
from typing import Annotated

from examples.study import markdown
from examples.training import command_line, options, records
from examples.training.checks import Setting
from examples.training.errors import UsageError

PROGRAM = "python -m examples.benchmarks.step_share"
KIND = "step_share"
RECORD = pathlib.Path(__file__).parent / "results" / "step_share.json"
WITHOUT = "no optimizer"
LABELS = {"cnn": "three convolutions", "resnet8": "ResNet-8"}


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured, and where it is written."""

    quick: Annotated[bool, Setting("one tiny network, two rounds, no record")] = False
    rounds: Annotated[int, Setting("interleaved rounds", low=1, high=10_000)] = 31
    output: Annotated[
        pathlib.Path | None,
        Setting(
            "the record",
            metavar="FILE",
            unset="examples/benchmarks/results/step_share.json",
            file=True,
        ),
    ] = None


def measure(settings, rounds, seconds_per_round):
    """Times the steps of a run of the study with each of the eight optimizers, and without one.

    Args:
        settings: `recipes.Settings` of the run. Its images are random: the time does not depend on
            them.
        rounds: Positive integer.
        seconds_per_round: Positive float, about how long each is run in a round.

    Returns:
        A dict: the network, the batch, the median milliseconds without an optimizer, and for each
        optimizer the quartiles of its share of a step, from 0 to 1.
    """
    import numpy as np

    from examples.benchmarks import updates

    steps = {name: _step(settings, name) for name in [WITHOUT, *_optimizers()]}
    counts = {}
    for name, run in steps.items():
        run(2)  # records the graph
        counts[name] = max(1, int(seconds_per_round / run(5) * 5))
    without, share = [], {name: [] for name in _optimizers()}
    for _ in range(rounds):
        for name, shares in share.items():
            alone, whole = (steps[one](counts[one]) / counts[one] for one in (WITHOUT, name))
            without.append(alone)
            shares.append(1 - alone / whole)
    return {
        "model": settings.model,
        "width": settings.width,
        "batch_size": settings.batch_size,
        "milliseconds_without": float(1e3 * np.median(without)),
        "share": {name: updates.quartiles(shares) for name, shares in share.items()},
    }


def _optimizers():
    from examples.benchmarks import updates
    from keras_adanorm import registry

    return {name: updates.OPTIMIZERS[name] for name in ("Adam", *registry.OPTIMIZERS)}


def _step(settings, name):
    """Function that runs a number of steps and returns the seconds that they took."""
    import keras
    import numpy as np
    import tensorflow as tf

    from examples.training import models

    shape = {"digits": (8, 8, 1), "cifar10": (32, 32, 3)}[settings.dataset]
    model = models.build(settings.model, 10, input_shape=shape, width=settings.width, seed=0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    random = np.random.default_rng(0)
    images = tf.constant(random.standard_normal((settings.batch_size, *shape), "float32"))
    labels = tf.constant(random.integers(0, 10, settings.batch_size))
    variables = model.trainable_variables
    optimizer = None
    if name != WITHOUT:
        optimizer = _optimizers()[name]()
        optimizer.build(variables)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        gradients = tape.gradient(value, [variable.value for variable in variables])
        if optimizer is None:
            return value, gradients
        optimizer.apply(gradients, variables)
        return value

    def run(times):
        start = time.perf_counter()
        for _ in range(times):
            result = step()
        np.asarray(tf.nest.flatten(result)[0])  # waits for the last
        return time.perf_counter() - start

    return run


def load(path):
    """The record in a file; a RecordError where it holds something else."""
    return records.of_kind(path, KIND, PROGRAM)


def table(path=RECORD):
    """The record in Markdown: a row for each network, a column for each optimizer."""
    record = load(path)
    with records.content_of(path, "Measure it again."):
        studies = record["studies"].values()
        names = list(next(iter(record["studies"].values()))["share"])
        rows = [["", "batch", "without", *names]]
        for part in studies:
            share = [_percent(part["share"][name]) for name in names]
            network = f"{LABELS[part['model']]}, {part['width']} filters"
            batch, without = f"{part['batch_size']}", f"{part['milliseconds_without']:.1f} ms"
            rows.append([network, batch, without, *share])
        return (
            f"{markdown.table(rows)}\n\nMedians of {record['rounds']} rounds with quartiles, on "
            f"{markdown.device(record)}: `{PROGRAM}`."
        )


def _percent(share):
    low, high = (round(100 * share[f"{end}_quartile"]) for end in ("lower", "upper"))
    return f"{100 * share['median']:.0f}% ({low} to {high})"


def main(arguments=None):
    """Runs the command line and returns its exit status."""
    return command_line.run(PROGRAM, lambda: _measure(arguments))


def _measure(arguments):
    chosen = Options(
        **options.read(PROGRAM, __doc__, {"measurement": options.group(Options)}, arguments)
    )
    import keras

    if keras.backend.backend() != "tensorflow":
        raise UsageError(f"The study runs on tensorflow. Received: {keras.backend.backend()}")
    from examples.study import convergence
    from examples.training.recipes import Settings

    output = chosen.output or (None if chosen.quick else RECORD)
    if output is not None:
        records.check_output(output, load, PROGRAM)
    parts = {}
    studies = list(convergence.STUDIES.values())
    for study in studies[:1] if chosen.quick else studies:
        settings = Settings(**study.settings)
        if chosen.quick:
            settings = dataclasses.replace(settings, batch_size=2, width=2)
        rounds, seconds = (2, 0.01) if chosen.quick else (chosen.rounds, 0.2)
        parts[study.name] = part = measure(settings, rounds, seconds)
        print(f"{study.name}: {part['milliseconds_without']:.2f} ms a step without an optimizer")
        for name, share in part["share"].items():
            print(
                f"  {name:14} {share['median']:6.1%} of a step "
                f"({share['lower_quartile']:.1%} to {share['upper_quartile']:.1%})"
            )
    if output is not None:
        about = {
            "kind": KIND,
            **records.origin(),
            "rounds": chosen.rounds,
            "finished": records.now(),
        }
        with records.replacing(output) as temporary:
            temporary.write_text(json.dumps({**about, "studies": parts}, indent=1) + "\n")
        print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
