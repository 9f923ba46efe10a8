"""The examples' models as a `keras_tuner.HyperModel`, and what a search tries to make large."""

import functools

import keras
import keras_tuner

from examples.training import data, models, recipes
from tuning.space import DIRECTIONS, OptimizerSpace

OBJECTIVES = {
    name: keras_tuner.Objective(name, direction) for name, direction in DIRECTIONS.items()
}


class ExampleHyperModel(keras_tuner.HyperModel):
    """A model and a data set of the examples, with an optimizer that is searched.

    It works with any tuner of keras-tuner, which should be given one of `OBJECTIVES`, and whose
    `search` needs no data. `python -m tuning.search` does more: there every execution has a
    process, a seed and a record of its own, and goes on where it was stopped.

    Args:
        settings: `examples.training.recipes.Settings`: model, data and recipe. Its optimizer gives
            way to that of the space.
        space: `OptimizerSpace`. Defaults to `None`: the usual one of the settings' optimizer.
        data_dir: Path that is handed to `examples.training.data.load`. Defaults to `None`.

    Example:

    ```python
    hypermodel = ExampleHyperModel(Settings(model="cnn", dataset="digits", epochs=3))
    objective = OBJECTIVES["last_epoch_val_accuracy"]
    tuner = keras_tuner.RandomSearch(hypermodel, objective, max_trials=5, overwrite=True)
    tuner.search()
    ```
    """

    def __init__(self, settings, space=None, data_dir=None):
        super().__init__(name=settings.model)
        self.settings = settings
        self.space = OptimizerSpace(settings.optimizer) if space is None else space
        self.data_dir = data_dir

    @functools.cached_property
    def data(self):
        """The data set, loaded once."""
        return data.load(
            self.settings.dataset,
            batch_size=self.settings.batch_size,
            seed=self.settings.seed,
            image_size=self.settings.image_size,
            data_dir=self.data_dir,
            validation_size=self.settings.validation_size,
            train_size=self.settings.train_size,
            augment=self.settings.augment,
        )

    def declare_hyperparameters(self, hp):
        """Declares the space without building a model."""
        self.space.declare(hp)

    def build(self, hp):
        """The compiled model."""
        settings = self.space.settings(hp, self.settings)
        model = models.build(
            settings.model,
            self.data.num_classes,
            input_shape=self.data.input_shape,
            width=settings.width,
            seed=settings.seed,
        )
        recipes.compile_model(model, settings, recipes.build_optimizer(settings))
        return model

    def fit(self, hp, model, epochs=None, initial_epoch=0, callbacks=(), **kwargs):
        """Trains by the recipe and returns the values of the last epoch."""
        settings = self.space.settings(hp, self.settings)
        epochs = settings.epochs if epochs is None else epochs
        schedule = keras.callbacks.LearningRateScheduler(
            lambda epoch: recipes.learning_rate_at(
                epoch, settings.learning_rate, settings.drop_epoch, settings.drop_factor
            )
        )
        history = model.fit(
            self.data.train_from(initial_epoch),
            steps_per_epoch=self.data.steps_per_epoch,
            initial_epoch=initial_epoch,
            epochs=epochs,
            validation_data=self.data.validation,
            callbacks=[schedule, *callbacks],
            shuffle=False,
            **kwargs,
        ).history
        return {f"last_epoch_{name}": values[-1] for name, values in history.items()}
