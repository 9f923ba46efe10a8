from keras_adanorm.adabelief import AdaBelief, AdaBeliefNorm
from keras_adanorm.adam_norm import AdamNorm
from keras_adanorm.diff_grad import DiffGrad, DiffGradNorm
from keras_adanorm.norm_correction import correct_norm
from keras_adanorm.radam import Radam, RadamNorm
