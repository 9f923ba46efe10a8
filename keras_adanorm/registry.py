"""The paper's four pairs. Tests, demo, experiments and tables take their lists from here."""

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
