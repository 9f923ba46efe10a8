"""Settings of a training that takes a moment."""

TINY = dict(
    model="cnn",
    width=4,
    dataset="synthetic",
    image_size=8,
    train_size=96,
    validation_size=32,
    batch_size=32,
    epochs=2,
)
