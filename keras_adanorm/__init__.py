"""AdaNorm optimizers for Keras 3: gradients whose norm does not fall below its own average."""

from keras_adanorm.adabelief import AdaBelief, AdaBeliefNorm
from keras_adanorm.adam_norm import AdamNorm
from keras_adanorm.base import (
    AdaptiveNormCorrection,
    AdaptiveOptimizer,
    NormCorrection,
    StepOptimizer,
)
from keras_adanorm.diff_grad import DiffGrad, DiffGradNorm
from keras_adanorm.engine.step import Step
from keras_adanorm.monitor import GradientNormMonitor
from keras_adanorm.norm_correction import correct_norm
from keras_adanorm.radam import Radam, RadamNorm
from keras_adanorm.wrapper import AdaNorm

__version__ = "0.2.0.dev0"

__all__ = [
    "AdaBelief",
    "AdaBeliefNorm",
    "AdaNorm",
    "AdamNorm",
    "AdaptiveNormCorrection",
    "AdaptiveOptimizer",
    "DiffGrad",
    "DiffGradNorm",
    "GradientNormMonitor",
    "NormCorrection",
    "Radam",
    "RadamNorm",
    "Step",
    "StepOptimizer",
    "correct_norm",
]
