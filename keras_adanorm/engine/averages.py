"""The averages of the gradients' norms, `e_t`: one vector for all variables, moved on at once."""

from contextlib import nullcontext

import keras
import numpy as np
from keras import ops

from keras_adanorm.engine import precision, private
from keras_adanorm.engine.norms import l2_norms

# The name of the vector among an optimizer's variables. It is not made of a weight's name: a layout
# map of Keras would then lay it out as that weight.
NAME = "norm_averages"


class NormAverages:
    """The vector `e_t` of an optimizer, with one element per variable in the order of `build`.

    Args:
        optimizer: The optimizer among whose variables the vector is.
        variables: The variables of `build`.
        excluded: Positions of variables that are not corrected.
        where: The optimizer that has a strategy of `tf.distribute`, `None` if that is `optimizer`.

    Attributes:
        vector: A variable of the shape `(len(variables),)`.
    """

    def __init__(self, optimizer, variables, excluded=frozenset(), where=None):
        self._optimizer = optimizer
        self._excluded = excluded
        self._dtypes = [precision.compute_dtype(variable.dtype) for variable in variables]
        self.dtype = "float64" if "float64" in self._dtypes else "float32"
        self.is_kept = [not private.is_overwritten_with_gradient(v) for v in variables]
        device = private.device_of(where or optimizer, variables[0]) if variables else nullcontext()
        with device:
            self.vector = optimizer.add_variable(
                shape=(len(variables),), initializer="zeros", dtype=self.dtype, name=NAME
            )

    def __len__(self):
        return len(self._dtypes)

    def scalars(self):
        """`e_t` of each variable as it stands, a scalar tensor, or `None` where there is none."""
        values = precision.as_tensor(self.vector)
        return [
            precision.to_dtype(values[i], dtype) if kept and i not in self._excluded else None
            for i, (kept, dtype) in enumerate(zip(self.is_kept, self._dtypes, strict=True))
        ]

    def correct(self, gradients, indices, gamma, max_correction, norms=None, keep_if=None):
        """Moves the averages of some variables on by the norms of their gradients.

        Args:
            gradients: List of tensors in the variables' compute dtypes.
            indices: The positions of their variables.
            gamma: Float in [0, 1).
            max_correction: Float, at least 1, or `None`.
            norms: The gradients' norms, a vector, where they are known, or `None`.
            keep_if: Boolean scalar tensor, whether the averages stay as they are, or `None`.

        Returns:
            For each gradient the scalar `||s_t|| / ||g_t||` in the gradient's dtype, or `None`
            where it is always 1.
        """
        if len(set(indices)) < len(indices):  # a variable that is given twice moves on twice
            return [
                self.correct(
                    [gradient],
                    [i],
                    gamma,
                    max_correction,
                    None if norms is None else norms[k : k + 1],
                    keep_if,
                )[0]
                for k, (gradient, i) in enumerate(zip(gradients, indices, strict=True))
            ]
        ratios = [None] * len(indices)
        chosen = [k for k, i in enumerate(indices) if i not in self._excluded]
        if not chosen:
            return ratios
        from keras_adanorm.norm_correction import norm_ratio  # which needs this package's norms

        positions = [indices[k] for k in chosen]
        if norms is None:
            norms = l2_norms([gradients[k] for k in chosen], self.dtype)
        elif len(chosen) < len(indices):
            norms = ops.take(norms, chosen)
        norms = precision.to_dtype(norms, self.dtype)
        before = precision.as_tensor(self.vector)
        is_whole = positions == list(range(len(self)))
        part = before if is_whole else ops.take(before, positions)
        ratio, after = norm_ratio(norms, part, gamma, self._bound(positions, max_correction))
        if keep_if is not None:
            after = ops.where(keep_if, part, after)
        self._optimizer.assign(self.vector, after if is_whole else _put(before, positions, after))
        if ratio is not None:
            for k, i, scalar in zip(chosen, positions, _unstack(ratio), strict=True):
                same = self._dtypes[i] == self.dtype
                ratios[k] = scalar if same else precision.to_dtype(scalar, self._dtypes[i])
        return ratios

    def _bound(self, positions, max_correction):
        """The largest ratio. In a float64 vector, too, one for float32 must fit into float32."""
        dtypes = {self._dtypes[i] for i in positions}
        if max_correction is None and self.dtype == "float64" and "float32" in dtypes:
            return precision.largest("float32")
        return max_correction


def _put(vector, positions, values):
    positions = ops.convert_to_tensor([[i] for i in positions], "int32")
    return ops.scatter_update(vector, positions, values)


def _unstack(vector):
    if keras.backend.backend() == "torch":
        return vector.unbind()
    if keras.backend.backend() == "jax":
        from keras_adanorm.engine.jax_norms import scalars_of

        return scalars_of(vector)
    return ops.unstack(vector)


def from_scalars(store, averages, variables):
    """What is stored, with the scalars of version 0.1 put together as the vector.

    Args:
        store: What an optimizer is loaded from, arrays by position.
        averages: The `NormAverages` of the optimizer, `None` if it is not built.
        variables: Its variables. In version 0.1 none came after the averages.
    """
    if averages is None or variables[-1] is not averages.vector:
        return store
    last, kept = len(variables) - 1, averages.is_kept
    if len(store.keys()) != last + sum(kept) or np.ndim(store[str(last)]) == 1:
        return store
    scalars = iter(range(last, last + sum(kept)))
    vector = [float(np.asarray(store[str(next(scalars))])) if is_kept else 0.0 for is_kept in kept]
    arrays = {str(i): store[str(i)] for i in range(last)}
    return {**arrays, str(last): np.array(vector, averages.dtype)}
