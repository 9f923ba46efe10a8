"""One epoch of each of the paper's models, through the whole training program."""

import math

import pytest

from examples.training import run
from examples.training.recipes import Settings


@pytest.mark.parametrize("model", ["vgg16", "resnet18", "resnet50"])
def test_the_papers_models_train(model, tmp_path):
    settings = Settings(
        model=model,
        width=16,
        dataset="synthetic",
        image_size=32,
        train_size=16,
        validation_size=16,
        batch_size=8,
        epochs=1,
    )
    record = run.train(settings, tmp_path, verbose=0, keep_model=False)
    assert record["model"]["name"] == model
    assert math.isfinite(record["epochs"]["loss"][0])
    assert 0 < record["corrections"]["gradient_norm"]
