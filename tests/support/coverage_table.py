"""What is run where: the tests take their cases from here, and `docs/devices.md` its table.

python -m tests.support.coverage_table     # rewrites the table between the markers there
"""

import pathlib
from typing import NamedTuple

from keras_adanorm import registry

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "devices.md"
OPTIMIZERS = (*registry.OPTIMIZERS, "AdaNorm")
KEEP_NORMS = {*(cls.__name__ for cls in registry.NORM_VARIANTS), "AdaNorm"}
BACKENDS = ("tensorflow", "jax", "torch")
PRECISIONS = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16")
# All of them where that is quick, and elsewhere some: the arithmetic is the same.
HALF_PRECISION = {
    "tensorflow": ("AdamNorm", "RadamNorm", "AdaNorm"),
    "jax": ("AdamNorm",),
    ("jax", "mixed_float16"): ("AdamNorm", "AdaNorm"),
}


class Setup(NamedTuple):
    """Where something runs, which optimizers run there, and the test that runs them."""

    backend: str
    devices: str
    precision: str
    optimizers: tuple
    test: str


SETUPS = {
    **{
        backend: Setup(backend, "one", "float32", OPTIMIZERS, "test_backends.py")
        for backend in BACKENDS
    },
    "mirrored": Setup(
        "tensorflow", "2, MirroredStrategy", "float32", OPTIMIZERS, "test_distribution.py"
    ),
    "data_parallel": Setup(
        "jax", "4, DataParallel", "float32", OPTIMIZERS, "test_jax_distribution.py"
    ),
    "model_parallel": Setup(
        "jax", "2 x 2, ModelParallel", "float32", OPTIMIZERS, "test_jax_distribution.py"
    ),
    "processes": Setup(
        "jax",
        "2 processes, DataParallel",
        "float32",
        ("AdamNorm",),
        "test_jax_distribution.py",
    ),
    **{
        f"{backend} {precision}": Setup(
            backend,
            "one",
            precision,
            HALF_PRECISION.get((backend, precision), HALF_PRECISION.get(backend, OPTIMIZERS)),
            "test_precision.py",
        )
        for backend in BACKENDS
        for precision in PRECISIONS
    },
}


def make(name, learning_rate=0.01, **arguments):
    """An optimizer of `OPTIMIZERS`; `AdaNorm` goes around Keras' SGD with momentum."""
    import keras

    import keras_adanorm

    if name == "AdaNorm":
        return keras_adanorm.AdaNorm(keras.optimizers.SGD(learning_rate, momentum=0.9, **arguments))
    return getattr(keras_adanorm, name)(learning_rate, **arguments)


def table():
    """The table of `SETUPS`, in Markdown."""
    head = ("backend", "CPU devices", "precision", *(f"`{name}`" for name in OPTIMIZERS), "in")
    rows = [
        (
            setup.backend,
            setup.devices,
            setup.precision,
            *("x" if name in setup.optimizers else "" for name in OPTIMIZERS),
            f"`tests/{setup.test}`",
        )
        for setup in SETUPS.values()
    ]
    rule = ("---",) * 3 + (":-:",) * len(OPTIMIZERS) + ("---",)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def render(text):
    """The document with the table between its markers."""
    # Not at the top: the tests of the optimizers run without the examples, too.
    from examples.study import markdown

    return markdown.render(text, {"devices": table})


if __name__ == "__main__":
    DOCUMENT.write_text(render(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
