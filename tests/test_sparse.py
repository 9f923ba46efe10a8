"""Gradients of embeddings (`tf.IndexedSlices`) give what the dense gradients give."""

import keras
import numpy as np
import pytest

from keras_adanorm import AdamNorm
from tests.support.optimizers import BACKEND, CLASSES, Run, assert_bitwise_equal

if BACKEND != "tensorflow":
    pytest.skip("only TensorFlow has sparse gradients in Keras", allow_module_level=True)

import tensorflow as tf

ROWS, WIDTH = 6, 2
STEPS = 4
KINDS = ("params", "m", "v", "previous_gradient", "e")
BASE_ARGUMENTS = (
    dict(clipnorm=0.5),
    dict(global_clipnorm=0.5),
    dict(clipvalue=0.3),
    dict(gradient_accumulation_steps=2),
    dict(weight_decay=0.1),
)


def slices(t, rows=ROWS):
    """A gradient with repeated, unordered rows, which cancel in part; every row absent at times."""
    random = np.random.default_rng(t)
    indices = random.integers(0, rows, 5)
    indices[3] = indices[0]
    values = random.standard_normal((5, WIDTH)).astype("float32") / (1 + t)
    values[3] = -0.9 * values[0]
    return tf.IndexedSlices(
        tf.constant(values), tf.constant(indices), tf.constant([rows, WIDTH], "int64")
    )


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [(cls, {}) for cls in CLASSES] + [(AdamNorm, arguments) for arguments in BASE_ARGUMENTS],
)
def test_sparse_equals_dense(cls, arguments):
    params = {"table": np.ones((ROWS, WIDTH)), "bias": np.ones(WIDTH)}
    sparse, dense = (Run(cls(0.01, beta_2=0.8, **arguments), params) for _ in range(2))
    for t in range(STEPS):
        table, bias = slices(t), tf.fill([WIDTH], 0.1)
        sparse.apply([table, bias])
        dense.apply([tf.convert_to_tensor(table), bias])
    assert_bitwise_equal(sparse, dense, KINDS)
    assert (sparse.params["table"] != 1).any()


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_sparse_in_a_graph(mode):
    params = {"table": np.ones((ROWS, WIDTH))}
    sparse = Run(AdamNorm(0.01), params, mode=mode)
    dense = Run(AdamNorm(0.01), params, mode=mode)
    for t in range(STEPS):
        sparse.apply([slices(t)])
        dense.apply([tf.convert_to_tensor(slices(t))])
    assert_bitwise_equal(sparse, dense, KINDS)


def test_a_large_table():
    rows = 2**14
    params = {"table": np.ones((rows, WIDTH))}
    sparse, dense = Run(AdamNorm(0.01), params), Run(AdamNorm(0.01), params)
    for t in range(STEPS):
        sparse.apply([slices(t, rows)])
        dense.apply([tf.convert_to_tensor(slices(t, rows))])
    assert_bitwise_equal(sparse, dense, KINDS)


def test_the_embedding_of_a_model():
    """The slices of a real tape: rows that no token used stay, in the first step, as they were."""
    model = keras.Sequential(
        [keras.layers.Embedding(ROWS, WIDTH), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile(AdamNorm(0.01), "mse", jit_compile=False)
    tokens = np.array([[0, 1, 1, 3], [3, 3, 3, 0]])
    model.build(tokens.shape)
    before = model.layers[0].get_weights()[0]
    model.fit(tokens, np.array([[1.0], [0.0]]), verbose=0)
    after = model.layers[0].get_weights()[0]
    changed = (after != before).any(axis=1)
    np.testing.assert_array_equal(changed, [True, True, False, True, False, False])
    assert keras.ops.convert_to_numpy(model.optimizer.norm_averages[0]) > 0
