"""Compares the cost of an optimizer's update with that of keras.optimizers.Adam.

examples:
  python -m examples.benchmarks.step_time             # many minutes; started again, it goes on
  python -m examples.benchmarks.step_time --quick     # tiny sizes; proves that it runs
  KERAS_BACKEND=jax python -m examples.benchmarks.step_time    # also torch; also on a GPU

While it measures it writes FILE.partial. FILE, the record, is replaced once all is measured, and
only if no part of it would be lost.

All optimizers are timed in one process on variables of the same shapes, in interleaved rounds: in
each round every optimizer runs a few updates, so that a change in the machine's speed affects all.
What is reported is the median over the rounds of the ratio to Adam within the same round, with the
interquartile range; milliseconds stand beside it. The record is a JSON file. On torch the Norm
variants are also timed as one may write them without a package, as a plain loop over the variables.

Modes. TensorFlow: `eager` (optimizer.apply), `graph` (inside a plain tf.function), `xla` (inside a
tf.function with jit_compile=True). JAX: `jit` (a jitted stateless_apply that donates its
buffers). torch: `eager`.

exit status: 0 measured, 1 could not go on (what is measured is kept), 2 wrong options,
130 interrupted.
"""

import dataclasses
import json
import os
import pathlib
import sys
from typing import Annotated

from examples.training import checks, command_line, options, records
from examples.training.checks import Setting
from examples.training.recipes import MODELS

PROGRAM = "python -m examples.benchmarks.step_time"
KIND = "step_time"
MODES = {"tensorflow": ("eager", "graph", "xla"), "jax": ("jit",), "torch": ("eager",)}
PARTS = ("fit", "scaling", "memory")
RESULTS = pathlib.Path(__file__).parent / "results" / "step_time"


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured, and where it is written."""

    quick: Annotated[bool, Setting("tiny sizes, two rounds, no record")] = False
    rounds: Annotated[int, Setting("interleaved rounds", low=1, high=10_000)] = 31
    models: Annotated[
        tuple[str, ...], Setting("whose variables are updated", choices=MODELS, least=1)
    ] = ("vgg16", "resnet50")
    modes: Annotated[
        tuple[str, ...],
        Setting(
            "ways to call the update",
            choices=tuple(dict.fromkeys(mode for modes in MODES.values() for mode in modes)),
            unset="all of the backend",
        ),
    ] = ()
    skip: Annotated[tuple[str, ...], Setting("parts to leave out", choices=PARTS)] = ()
    output: Annotated[
        pathlib.Path | None,
        Setting(
            "the record",
            metavar="FILE",
            unset="one in examples/benchmarks/results/step_time",
            file=True,
        ),
    ] = None


def print_table(title, rows):
    print(
        f"\n{title}\n{'optimizer':27s} {'ms':>9s} {'ratio to Adam':>14s} {'(quartiles)':>15s}",
        end="",
    )
    print(f" {'first update, s':>16s}")
    for name, row in rows.items():
        ratio = row["ratio_to_adam"]
        quartiles = f"({ratio['lower_quartile']:.2f}-{ratio['upper_quartile']:.2f})"
        print(
            f"{name:27s} {row['milliseconds']['median']:9.2f} {ratio['median']:14.3f} "
            f"{quartiles:>15s} {row['seconds_to_first_update']:16.1f}"
        )


def main(arguments=None):
    """Runs the command line and returns its exit status."""
    return command_line.run(
        PROGRAM, lambda: _measure(_options(arguments)), "the same command goes on"
    )


def _options(arguments):
    values = options.read(PROGRAM, __doc__, {"measurement": options.group(Options)}, arguments)
    chosen = Options(**values)
    if chosen.output is not None:
        records.check_output(chosen.output, load, PROGRAM)
    import keras

    backend = keras.backend.backend()
    for mode in chosen.modes:
        if mode not in MODES[backend]:
            allowed = f"of {', '.join(MODES[backend])}, with the backend {backend},"
            raise checks.refused("modes", allowed, mode)
    return dataclasses.replace(chosen, modes=chosen.modes or MODES[backend])


def load(path):
    """The record in a file; a RecordError where it holds something else."""
    record = records.of_kind(path, KIND, PROGRAM)
    with records.content_of(path, "Measure it again."):
        _parts(record)
    return record


def _measure(chosen):
    import keras
    import numpy as np

    from examples.benchmarks import updates

    rounds, seconds = (2, 0.01) if chosen.quick else (chosen.rounds, 0.1)
    skip, output = chosen.skip, chosen.output
    if chosen.quick:
        shape_sets = {"quick": [(3, 3, 64, 64), (64,), (64, 10), (10,)]}
        skip = ("scaling", "memory")
    else:
        shape_sets = {name: updates.model_shapes(name) for name in chosen.models}
        if output is None:
            device = "gpu" if records.device()["gpus"] else "cpu"
            output = RESULTS / f"{keras.backend.backend()}-{device}.json"
            records.check_output(output, load, PROGRAM)
    record = Record(output, rounds)

    for name, shapes in shape_sets.items():
        for mode in chosen.modes:
            rows = record.part(
                f"updates/{name}/{mode}",
                lambda shapes=shapes, mode=mode: updates.measure(
                    updates.with_plain_loops(updates.OPTIMIZERS), shapes, mode, rounds, seconds
                ),
            )
            parameters = sum(int(np.prod(shape)) for shape in shapes)
            print_table(f"{name}, {len(shapes)} variables, {parameters:,} parameters: {mode}", rows)
    megabytes = 16 if chosen.quick else 256
    speed = record.part("memory_gigabytes_per_second", lambda: updates.memory_speed(megabytes, 7))
    print(f"\nlarge copy: {speed:.1f} GB/s read and written")
    if "memory" not in skip and sys.platform == "linux":
        shapes = next(iter(shape_sets.values()))
        for mode in chosen.modes:
            used = record.part(
                f"memory/{mode}", lambda mode=mode: updates.state_and_peak(shapes, mode)
            )
            print(f"\nmemory, {mode}: {json.dumps(used)}")
    if "fit" not in skip:
        steps = 5 if chosen.quick else 60
        fit = record.part("fit", lambda: updates.fit_times(rounds, steps))
        print(f"\nmodel.fit, AdamNorm to Adam: {fit['ratio_to_adam']}")
    if "scaling" not in skip:
        mode = chosen.modes[-2] if len(chosen.modes) > 1 else chosen.modes[0]
        sizes, counts = [10**4, 10**5, 10**6, 10**7, 10**8], [1, 10, 100, 1000]
        scaled = record.part(
            "scaling",
            lambda: updates.scaling(mode, min(rounds, 15), sizes, counts, seconds_per_round=0.03),
        )
        for name, cost in scaled["fitted_cost"].items():
            print(f"{name}: {cost}")
    if output is not None:
        print(f"\n{record.finish()}")
    return 0


class Record:
    """The record of a measurement, in a place of its own until all of it is measured.

    Args:
        path: Path of the record, or `None` to keep nothing. What is measured goes to
            `<path>.partial`. Parts that are there are not measured again, if they were measured
            with the same code, versions, device and rounds.
        rounds: Positive integer.
    """

    def __init__(self, path, rounds):
        self._path = path
        self._content = {
            "kind": KIND,
            **records.origin(),
            "rounds": rounds,
        }
        for before in () if path is None else (self.partial, path):
            if before.exists() and self._continues(content := load(before)):
                _progress(f"going on with {before}")
                self._content = content
                break

    @property
    def partial(self):
        """Where the parts are written until all are measured."""
        return self._path.with_name(f"{self._path.name}.partial")

    def part(self, name, measured):
        """The part of that name, `/` between levels, measured by a function if it is not there."""
        *levels, last = name.split("/")
        place = self._content
        for level in levels:
            place = place.setdefault(level, {})
        if last not in place:
            _progress(name)
            place[last] = measured()
            self._content["time"] = records.now()
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with records.replacing(self.partial) as temporary:
                    temporary.write_text(json.dumps(self._content, indent=1) + "\n")
        return place[last]

    def finish(self):
        """Puts what was measured in the record's place, and says in words where it stands."""
        if not self.partial.exists():
            return f"{self._path}: nothing was left to measure"
        lost = _parts(load(self._path)) - _parts(self._content) if self._path.exists() else ()
        if lost:
            return (
                f"{self.partial}: {self._path} keeps its place, because it has parts that were not "
                f"measured: {', '.join(sorted(lost))}"
            )
        os.replace(self.partial, self._path)
        return f"{self._path}"

    def _continues(self, content):
        same = ("commit", "versions", "device", "rounds")
        return all(content.get(name) == self._content[name] for name in same)


def _parts(content):
    """The names of what a record has measured."""
    names = {name for name in PARTS if name in content}
    for model, modes in content.get("updates", {}).items():
        names |= {f"{model}, {mode}" for mode in modes}
    return names | {f"memory, {mode}" for mode in content.get("memory", {})}


def _progress(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
