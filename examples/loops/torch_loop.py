"""A loop on torch: `backward`, then `optimizer.apply`.

KERAS_BACKEND=torch python -m examples.loops.torch_loop
"""

import torch

from examples.loops.problem import LEARNING_RATE, batches, loss, new_model
from keras_adanorm import AdamNorm


def train():
    model, optimizer = new_model(), AdamNorm(LEARNING_RATE)
    for x, y in batches():
        model.zero_grad()
        error = ((model(x, training=True) - torch.as_tensor(y)) ** 2).mean()
        error.backward()
        gradients = [variable.value.grad for variable in model.trainable_variables]
        with torch.no_grad():
            optimizer.apply(gradients, model.trainable_variables)
    return model, optimizer


if __name__ == "__main__":
    model, optimizer = train()
    print(f"loss {loss(model):.4f}")
