"""Counts what an optimizer's update is compiled to for a GPU or TPU that need not be there.

examples:
  python -m examples.benchmarks.accelerator                    # an H100; some minutes
  python -m examples.benchmarks.accelerator --targets v5e      # a TPU v5e; long
  python -m examples.benchmarks.accelerator --models vgg16 --optimizers AdamNorm --no-record

XLA compiles for a device that is only described. Its program is the one that would run there, so
its kernels, each of which costs a launch, and the bytes that they read and write are counted, not
estimated. Nothing is timed. Needs the extra `accelerator`: pip install -e '.[accelerator]'.

exit status: 0 counted, 1 could not go on, 2 wrong options, 130 interrupted.
"""

import dataclasses
import json
import math
import os
import pathlib
import re
import sys
from typing import Annotated

from examples.training import command_line, options, pairs, records
from examples.training.checks import Setting

PROGRAM = "python -m examples.benchmarks.accelerator"
KIND = "accelerator"
RESULTS = pathlib.Path(__file__).parent / "results" / "accelerator"
TARGETS = {"h100": "gpu", "v5e": "tpu"}
MODELS = {"vgg16": (32, 10), "resnet50": (64, 100)}
_PAIRS = pairs.read()
WRAPPERS = ("AdaNorm(SGD)", "AdaNorm(Adam)")
OPTIMIZERS = (
    tuple(name for name in dict.fromkeys((*_PAIRS, *_PAIRS.values())) if name != "Adam") + WRAPPERS
)

# NVIDIA's numbers of an H100 with 80 GB, in the words of XLA.
_H100 = """
gpu_device_info {
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 cuda_compute_capability { major: 9 }
  device_memory_size: 84942979072 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
}
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 10 }
"""
_BYTES = {"f64": 8, "s64": 8, "u64": 8, "f32": 4, "s32": 4, "u32": 4}
_BYTES |= {"bf16": 2, "f16": 2, "s16": 2, "u16": 2, "pred": 1, "s8": 1, "u8": 1}
# What takes no time on the device.
_NO_KERNEL = ("parameter", "get-tuple-element", "tuple", "bitcast", "constant")
_NO_KERNEL += ("copy-start", "copy-done", "async-done", "slice-done")


@dataclasses.dataclass(frozen=True)
class Options:
    """What is compiled, and whether it is recorded."""

    targets: Annotated[
        tuple[str, ...], Setting("devices to compile for", choices=tuple(TARGETS), least=1)
    ] = ("h100",)
    models: Annotated[
        tuple[str, ...], Setting("whose variables are updated", choices=tuple(MODELS), least=1)
    ] = tuple(MODELS)
    optimizers: Annotated[
        tuple[str, ...], Setting("counted beside Adam", choices=OPTIMIZERS, least=1)
    ] = OPTIMIZERS
    record: Annotated[bool, Setting("write the record")] = True


def main(arguments=None):
    """Runs the command line and returns its exit status."""
    return command_line.run(PROGRAM, lambda: _count(arguments), "nothing was recorded")


def _count(arguments):
    chosen = Options(**options.read(PROGRAM, __doc__, {"count": options.group(Options)}, arguments))
    # Before Keras and JAX are imported: nothing is run, so no device is needed.
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    print(f"{'target':8}{'variables':11}{'optimizer':15}{'kernels':>9}{'MB':>8}{'x Adam:':>10}")
    for target in chosen.targets:
        counts = {}
        for model in chosen.models:
            shapes = model_shapes(model)
            rows = counts[model] = {}
            for name in ("Adam", *chosen.optimizers):
                rows[name] = count(name, shapes, target)
                ours, adam = rows[name], rows["Adam"]
                print(
                    f"{target:8}{model:11}{name:15}{ours['kernels']:9}{ours['bytes'] / 1e6:8.0f}"
                    f"{ours['kernels'] / adam['kernels']:10.2f} kernels"
                    f"{ours['bytes'] / adam['bytes']:6.2f} bytes",
                    flush=True,
                )
        if chosen.record:
            _write(target, counts)
    return 0


def _write(target, counts):
    content = {
        "kind": KIND,
        "target": target,
        "commit": records.commit(),
        "versions": records.versions(),
        "time": records.now(),
        "counts": counts,
    }
    path = RESULTS / f"{target}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with records.replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")
    print(path)


def model_shapes(name):
    """The shapes of the trainable variables of one of Keras' own networks."""
    import keras

    size, classes = MODELS[name]
    network = {"vgg16": keras.applications.VGG16, "resnet50": keras.applications.ResNet50}[name]
    top = {"classes": classes} if name == "resnet50" else {"include_top": False}
    model = network(weights=None, input_shape=(size, size, 3), **top)
    return [tuple(variable.shape) for variable in model.trainable_variables]


def count(name, shapes, target):
    """The kernels of one update, and the bytes that they read and write."""
    compiled = compile_update(make_optimizer(name), shapes, target)
    found = kernels(compiled.as_text())
    moved = sum(number for _, number in found)
    if target == "v5e":  # for a TPU the compiler says it itself
        moved = int(compiled.cost_analysis()["bytes accessed"])
    return {"kernels": len(found), "bytes": moved}


def make_optimizer(name):
    """An optimizer of `OPTIMIZERS`, or one of Keras' own."""
    import keras

    import keras_adanorm

    inner = {
        "AdaNorm(SGD)": lambda: keras.optimizers.SGD(momentum=0.9),
        "AdaNorm(Adam)": keras.optimizers.Adam,
    }
    if name in inner:
        return keras_adanorm.AdaNorm(inner[name]())
    return (getattr(keras_adanorm, name, None) or getattr(keras.optimizers, name))()


def compile_update(optimizer, shapes, target):
    """The program of one update of float32 variables for a device that is only described."""
    import jax
    import keras
    from jax.sharding import SingleDeviceSharding

    from keras_adanorm import execution

    variables = [
        keras.Variable(jax.numpy.zeros(shape), name=f"w{i}") for i, shape in enumerate(shapes)
    ]
    optimizer.build(variables)
    there = SingleDeviceSharding(_described_device(target))

    def described(variable):
        return jax.ShapeDtypeStruct(variable.value.shape, variable.value.dtype, sharding=there)

    weights = [described(variable) for variable in variables]
    state = [described(variable) for variable in optimizer.variables]
    step = jax.jit(lambda g, w, s: optimizer.stateless_apply(s, g, w), donate_argnums=(1, 2))
    # The one place where the package asks for the device: what is counted is what would run there.
    before = execution.target
    execution.target = lambda: TARGETS[target]
    try:
        return step.lower(weights, weights, state).compile()
    finally:
        execution.target = before


def _described_device(target):
    from jax.experimental import topologies

    if target == "h100":
        topology = topologies.get_topology_desc(
            platform="cuda", topology="1x1x1", target_config=_H100
        )
    else:
        topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    return topology.devices[0]


def kernels(program):
    """The kernels of a compiled program, and what they read and write.

    Args:
        program: String, a program of XLA in text form.

    Returns:
        List of pairs: the operation's name and its bytes.
    """
    entry = program[program.index("\nENTRY ") :]
    instruction = re.compile(r"\s*(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)")
    shapes, found = {}, []
    for line in entry[: entry.index("\n}")].splitlines()[2:]:
        match = instruction.match(line)
        if match is None:
            continue
        name, shape, operation, rest = match.groups()
        shapes[name] = shape
        if operation not in _NO_KERNEL:
            operands = re.findall(r"%([\w.-]+)", rest.split("), ")[0])
            read = sum(_size(shapes.get(operand, "")) for operand in operands)
            found.append((operation, read + _size(shape)))
    return found


def _size(shape):
    """The bytes of all arrays in a shape.

    >>> _size("(f32[2,3]{1,0}, s32[])")
    28
    """
    arrays = re.findall(r"\b([a-z]\w*)\[([\d,]*)\]", shape)
    return sum(
        _BYTES.get(kind, 0) * math.prod(int(n) for n in sizes.split(",") if n)
        for kind, sizes in arrays
    )


if __name__ == "__main__":
    sys.exit(main())
