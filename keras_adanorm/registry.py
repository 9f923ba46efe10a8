"""All Norm variants with their plain optimizers. Tests, demo and tables read it."""

import keras

from keras_adanorm.adabelief import AdaBelief, AdaBeliefNorm
from keras_adanorm.adam_norm import AdamNorm
from keras_adanorm.diff_grad import DiffGrad, DiffGradNorm
from keras_adanorm.radam import Radam, RadamNorm

# Norm variant: the plain optimizer that it starts from. A new variant is one line more.
PLAIN_OF = {
    AdamNorm: keras.optimizers.Adam,
    DiffGradNorm: DiffGrad,
    RadamNorm: Radam,
    AdaBeliefNorm: AdaBelief,
}

NORM_VARIANTS = tuple(PLAIN_OF)
# Keras' own are not among them.
PLAIN_OPTIMIZERS = tuple(
    dict.fromkeys(cls for cls in PLAIN_OF.values() if cls.__module__.startswith(__package__ + "."))
)
OPTIMIZERS = {cls.__name__: cls for cls in NORM_VARIANTS + PLAIN_OPTIMIZERS}
