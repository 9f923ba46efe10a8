"""One training run, from settings to record: what the command line and the tables call.

    record = run.train(Settings(model="cnn", dataset="digits", epochs=3), "runs/first")

A run that was killed at any moment is started again and goes on after its last finished epoch; it
ends with what an unbroken run ends with. A finished run is not run again.
"""

import contextlib
import hashlib
import math
import pathlib
import shutil

import keras
import numpy as np
import tensorflow as tf

import keras_adanorm
from examples.training import callbacks, data, locks, models, recipes, records
from examples.training.command_line import counted
from examples.training.errors import DivergedError, RunError, UsageError
from keras_adanorm.monitor import GradientNormMonitor

RECORD = "record.json"
MODEL = "model.keras"
NORMS = "gradient_norms.npz"


def train(settings, output_dir, data_dir=None, verbose="auto", keep_model=True, observers=()):
    """Trains as the settings say, unless that is done already, and returns the record.

    Args:
        settings: `recipes.Settings`.
        output_dir: Path of the run's own folder, made if it does not exist.
        data_dir: Path that is handed to `examples.training.data.load`. Defaults to `None`.
        verbose: `"auto"`, 0, 1 or 2, as in `keras.Model.fit`.
        keep_model: Boolean, whether the trained model stays, as `model.keras`.
        observers: More callbacks for `fit`. They are not part of the record, so they should only
            look on.

    Returns:
        The record, a dictionary: see `examples.training.records`.

    Raises:
        UsageError: If a setting is wrong, or settings and data don't go together. Nothing was
            trained then.
        RunError: If the run cannot go on: damaged, foreign or unwritable files, a loss that is
            not a number. The last good state is kept then.
    """
    output_dir = pathlib.Path(output_dir)
    check(settings)
    if (record := _finished(output_dir, settings, keep_model)) is not None:
        return record
    with exclusive(output_dir):
        # Another process may have finished it in the meantime.
        if (record := _finished(output_dir, settings, keep_model)) is not None:
            return record
        with _dtype_policy(settings), _enough_memory(output_dir):
            return _train(settings, output_dir, data_dir, verbose, keep_model, observers)


def check(settings):
    """Raises UsageError if there is no such optimizer or it refuses its arguments."""
    with _usage():
        optimizer = recipes.build_optimizer(settings)
    if settings.optimizer_config is not None:
        recipes.try_update(optimizer)


def _train(settings, output_dir, data_dir, verbose, keep_model, observers):
    keras.utils.set_random_seed(settings.seed)
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    with _usage():
        dataset = _load(settings, data_dir)
        with _strategy(settings).scope():
            model, optimizer = _build(settings, dataset)
    described = recipes.describe_optimizer(optimizer)
    identity = {
        "settings": settings.as_dict(),
        "data": dataset.fingerprint,
        "backend": keras.backend.backend(),
    }
    keeper = callbacks.Keeper(output_dir, identity, _monitor(settings, optimizer))
    start = keeper.restore(model)
    if start == 0:
        print(
            f"{model.name} ({_parameters(model):,} trainable parameters) on {dataset.name} "
            f"({counted(dataset.train_examples, 'training image')}) with "
            f"{recipes.named_optimizer(settings)}: {counted(settings.epochs, 'epoch')} "
            f"into {output_dir}",
            flush=True,
        )
    else:
        print(f"Going on after epoch {start} of {settings.epochs} in {output_dir}", flush=True)
    # With no epoch left, `fit` still finishes what the optimizer keeps, such as averaged weights.
    with _event_files(output_dir, keeper):
        model.fit(
            dataset.train_from(start),
            steps_per_epoch=dataset.steps_per_epoch,
            initial_epoch=start,
            epochs=settings.epochs,
            validation_data=dataset.validation,
            callbacks=_callbacks(settings, dataset, optimizer, keeper, observers),
            shuffle=False,
            verbose=verbose,
        )
    test = model.evaluate(dataset.test, verbose=0, return_dict=True)
    if not math.isfinite(test["loss"]):
        raise DivergedError(
            f"The test loss is {test['loss']} after the last epoch. A smaller learning rate may "
            f"help. {keeper.last_good()}"
        )
    record = _record(settings, dataset, model, described, keeper, test)
    with callbacks.files_of(output_dir, keeper):
        if keeper.monitor is not None and keeper.monitor.per_step:
            with records.replacing(output_dir / NORMS) as temporary:
                np.savez_compressed(temporary, **keeper.monitor.get_state())
        if keep_model:
            with records.replacing(output_dir / MODEL) as temporary:
                model.save(temporary)
        records.write(output_dir / RECORD, record)
    shutil.rmtree(keeper.folder, ignore_errors=True)
    return record


def _load(settings, data_dir):
    with data.usable():
        return data.load(
            settings.dataset,
            batch_size=settings.batch_size,
            seed=settings.seed,
            image_size=settings.image_size,
            data_dir=data_dir,
            validation_size=settings.validation_size,
            train_size=settings.train_size,
            augment=settings.augment,
        )


def _build(settings, dataset):
    model = models.build(
        settings.model,
        dataset.num_classes,
        input_shape=dataset.input_shape,
        width=settings.width,
        seed=settings.seed,
    )
    optimizer = recipes.build_optimizer(settings)
    if settings.monitor in ("epoch", "step") and not hasattr(optimizer, "norm_averages"):
        optimizer = keras_adanorm.AdaNorm(optimizer, gamma=0.0)
    steps = steps_per_execution(settings.steps_per_execution, dataset.steps_per_epoch)
    if steps != settings.steps_per_execution:
        print(f"steps_per_execution={steps}: it must divide the {dataset.steps_per_epoch} steps")
    recipes.compile_model(model, settings, optimizer, steps)
    return model, optimizer


def steps_per_execution(wanted, steps_per_epoch):
    """The largest number up to `wanted` that divides the steps of an epoch.

    Keras lets the last execution of an epoch run over its end, into the data of the next.

    >>> steps_per_execution(32, 782)
    23
    """
    upwards = range(1, min(wanted, steps_per_epoch) + 1)
    return max(n for n in upwards if steps_per_epoch % n == 0)


def _strategy(settings):
    if not settings.distribute:
        return tf.distribute.get_strategy()
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if settings.batch_size < len(devices):
        raise ValueError(
            f"Argument `batch_size` must be at least {len(devices)}, the number of devices. "
            f"Received: batch_size={settings.batch_size}"
        )
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def _monitor(settings, optimizer):
    kept = hasattr(optimizer, "norm_averages")
    if settings.monitor == "off" or settings.steps_per_execution > 1 or not kept:
        return None
    return GradientNormMonitor(every=settings.monitor_every, per_step=settings.monitor == "step")


def _callbacks(settings, dataset, optimizer, keeper, observers):
    chosen = [callbacks.StopOnNonFinite(keeper), _schedule(settings, optimizer), keeper.monitor]
    if settings.test_every_epoch:
        chosen.append(callbacks.TestEveryEpoch(dataset.test))
    chosen.append(
        keras.callbacks.TensorBoard(str(keeper.output_dir / "tensorboard"), write_graph=False)
    )
    return [c for c in (*chosen, *observers, keeper) if c is not None]


def _schedule(settings, optimizer):
    """The recipe's learning rate, unless the optimizer came with a schedule of its own."""
    base = settings.learning_rate or float(optimizer.learning_rate)
    try:
        optimizer.learning_rate = base
    except TypeError:
        return None
    return keras.callbacks.LearningRateScheduler(
        lambda epoch: recipes.learning_rate_at(
            epoch, base, settings.drop_epoch, settings.drop_factor
        )
    )


def _finished(output_dir, settings, keep_model):
    path = output_dir / RECORD
    with callbacks.files_of(output_dir):
        if not path.exists():
            return None
        try:
            record = records.read(path)
        except records.RecordError as error:
            raise RunError(f"{error}. Delete it to train again.") from error
    wanted = {"settings": callbacks.as_json(settings.as_dict())}
    if record["settings"] != wanted["settings"]:
        raise RunError(
            f"{path} belongs to another run: {callbacks.difference(record, wanted)}. "
            "Give this run an output folder of its own."
        )
    print(f"Done already, nothing to train: {path}")
    if keep_model and not (output_dir / MODEL).exists():
        print(f"Its model was not kept. To have it, delete {path} and train again.")
    return record


def _record(settings, dataset, model, optimizer, keeper, test):
    curves = keeper.curves
    validation = corrections = None
    if "val_accuracy" in curves:
        validation = {"accuracy": curves["val_accuracy"][-1], "loss": curves["val_loss"][-1]}
        validation |= _best(curves["val_accuracy"])
    if keeper.monitor is not None:
        corrections = {name: _mean(curves[name]) for name in keeper.monitor.history}
    return {
        "schema": records.SCHEMA,
        "settings": settings.as_dict(),
        "optimizer": optimizer,
        "model": {"name": model.name, "parameters": _parameters(model)},
        "data": {
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            "train_examples": dataset.train_examples,
            "validation_examples": dataset.validation_examples,
            "test_examples": dataset.test_examples,
        },
        "epochs": curves,
        # The last epoch's is the result. The best epoch's is the paper's habit; it was chosen
        # with the test set.
        "test": {
            "accuracy": test["accuracy"],
            "loss": test["loss"],
            **(_best(curves["test_accuracy"]) if "test_accuracy" in curves else {}),
        },
        "validation": validation,
        "corrections": corrections,
        "weights": _digest(model),
        "seconds": round(sum(curves["seconds"]), 3),
        "finished": records.now(),
        **records.origin(),
    }


def _parameters(model):
    return sum(math.prod(weight.shape) for weight in model.trainable_weights)


def _best(accuracies):
    best = int(np.argmax(accuracies))
    return {"best_epoch": best + 1, "best_epoch_accuracy": accuracies[best]}


def _mean(values):
    """The mean over the epochs in which something was observed."""
    observed = [value for value in values if math.isfinite(value)]
    return float(np.mean(observed)) if observed else None


def _digest(model):
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _usage():
    """What is refused before training is the caller's to change."""
    try:
        yield
    except ValueError as error:
        raise UsageError(" ".join(str(error).split())) from error


@contextlib.contextmanager
def _dtype_policy(settings):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(recipes.PRECISIONS[settings.mixed_precision])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextlib.contextmanager
def _enough_memory(output_dir):
    """A model or batches that do not fit into the memory are the settings' doing."""
    try:
        yield
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        # A full disk is told in the same way, with the name of the file.
        if str(output_dir) in str(error):
            raise
        raise RunError(
            "There is not enough memory. A smaller batch size, width or image size may help."
        ) from error


@contextlib.contextmanager
def _event_files(output_dir, keeper):
    """TensorFlow writes the event files itself, and has errors of its own for a full disk."""
    try:
        yield
    except tf.errors.OpError as error:
        if str(output_dir) not in error.message:
            raise
        reason = " ".join(error.message.split())
        raise RunError(f"Cannot write event files: {reason}. {keeper.last_good()}") from error


@contextlib.contextmanager
def exclusive(output_dir):
    """Makes the folder and keeps other processes out."""
    with callbacks.files_of(output_dir):
        records.make_folder(output_dir)
    with contextlib.ExitStack() as stack:
        # What was refused before it began leaves no empty folder.
        stack.callback(_remove_if_empty, output_dir)
        with callbacks.files_of(output_dir):
            stack.enter_context(locks.hold(output_dir / locks.FOLDER_LOCK, "training"))
        yield


def _remove_if_empty(folder):
    with contextlib.suppress(OSError):
        folder.rmdir()
