"""The accuracies that the paper reports, Tables 1 to 5, in percent.

Dubey, Singh and Chaudhuri, "AdaNorm: Adaptive Gradient Norm Correction based Optimizer for CNNs",
WACV 2023. Each is a mean of three runs; the paper does not say whether of the last or of the best
epoch, and gives no spread.

A value that stands in two tables is the same in both, and the printed gains follow from the values.
One slip is in the print: of Table 2, ResNet18 on CIFAR-100, 73.13 (gamma 0.99) is bold as the
highest, beside 73.16 (0.999).
"""

_CIFAR10, _CIFAR100, _TINY = "cifar10", "cifar100", "tiny_imagenet"


def _table(arms, rows):
    """`{(dataset, model, arm): value}` from rows of values in the order of the arms."""
    return {
        (dataset, model, arm): value
        for (dataset, model), values in rows.items()
        for arm, value in zip(arms, values, strict=True)
    }


def _transposed(arms, columns):
    """The same from columns, where the arms are the rows of the paper's table."""
    rows = dict(zip(columns, zip(*arms.values(), strict=True), strict=True))
    return _table(tuple(arms), rows)


_MODELS = ("vgg16", "resnet18", "resnet50")
_COLUMNS = [(dataset, model) for dataset in (_CIFAR10, _CIFAR100, _TINY) for model in _MODELS]

# The names of the arms are those of `examples.study.experiments`.
ACCURACIES = {
    "table1": _table(
        (
            *("Adam", "AdamNorm", "DiffGrad", "DiffGradNorm"),
            *("Radam", "RadamNorm", "AdaBelief", "AdaBeliefNorm"),
        ),
        {
            (_CIFAR10, "vgg16"): (92.55, 92.83, 92.76, 92.87, 92.94, 93.14, 92.71, 92.81),
            (_CIFAR10, "resnet18"): (93.54, 93.78, 93.49, 93.98, 93.82, 93.89, 93.63, 93.66),
            (_CIFAR10, "resnet50"): (93.83, 94.01, 93.81, 94.23, 94.14, 94.21, 94.1, 94.16),
            (_CIFAR100, "vgg16"): (67.29, 69.15, 68.19, 68.31, 70.69, 70.77, 68.92, 69.24),
            (_CIFAR100, "resnet18"): (71.09, 73.11, 73.5, 73.64, 73.22, 73.34, 72.72, 73.31),
            (_CIFAR100, "resnet50"): (71.88, 75.53, 75.06, 75.49, 74.95, 75.39, 75.53, 75.49),
            (_TINY, "vgg16"): (41.93, 44.67, 42.91, 43.49, 43.84, 45.02, 44.23, 44.79),
            (_TINY, "resnet18"): (47.73, 49.57, 49.34, 49.80, 48.73, 50.50, 49.25, 49.99),
            (_TINY, "resnet50"): (48.98, 54.44, 51.32, 53.75, 51.63, 52.87, 53.57, 54.44),
        },
    ),
    "table2": _transposed(
        {
            "AdamNorm-gamma0.9": (92.56, 93.72, 93.95, 68.85, 73.06, 75.53, 44.85, 50.47, 54.72),
            "AdamNorm": (92.83, 93.78, 94.01, 69.15, 73.11, 75.53, 44.67, 49.57, 54.44),
            "AdamNorm-gamma0.99": (92.88, 93.55, 94.11, 69.33, 73.13, 75.43, 45.08, 49.41, 54.54),
            "AdamNorm-gamma0.999": (92.66, 93.68, 93.54, 69.18, 73.16, 75.48, 44.71, 50.45, 54.14),
        },
        _COLUMNS,
    ),
    "table3": _transposed(
        {
            "AdamNorm": (92.83, 93.78, 94.01, 69.15, 73.11, 75.53, 44.67, 49.57, 54.44),
            "AdamNorm-second": (92.74, 93.67, 93.36, 68.86, 72.65, 74.30, 43.43, 49.17, 54.01),
            "AdamNorm-both": (92.69, 93.61, 93.10, 69.08, 72.95, 74.54, 43.77, 49.19, 53.73),
        },
        _COLUMNS,
    ),
    "table4": _table(
        (
            *("Adam-lr0.01", "Adam", "Adam-lr0.0001"),
            *("AdamNorm-lr0.01", "AdamNorm", "AdamNorm-lr0.0001"),
        ),
        {
            (_CIFAR10, "vgg16"): (92.21, 92.55, 92.02, 92.30, 92.83, 92.27),
            (_CIFAR10, "resnet18"): (92.90, 93.54, 93.07, 93.18, 93.78, 93.13),
            (_CIFAR100, "vgg16"): (65.93, 67.29, 68.57, 66.19, 69.15, 68.75),
            (_CIFAR100, "resnet18"): (66.84, 71.09, 72.95, 68.42, 73.11, 73.14),
            (_TINY, "vgg16"): (36.78, 41.93, 44.55, 41.41, 44.67, 46.65),
            (_TINY, "resnet18"): (45.50, 47.73, 48.87, 46.94, 49.57, 51.08),
        },
    ),
    "table5": _table(
        (
            *("Adam-batch32", "Adam", "Adam-batch128"),
            *("AdamNorm-batch32", "AdamNorm", "AdamNorm-batch128"),
        ),
        {
            (_CIFAR10, "vgg16"): (92.56, 92.55, 92.33, 92.80, 92.83, 92.57),
            (_CIFAR10, "resnet18"): (93.45, 93.54, 93.60, 93.51, 93.78, 93.69),
            (_CIFAR100, "vgg16"): (67.58, 67.29, 67.80, 68.81, 69.15, 69.45),
            (_CIFAR100, "resnet18"): (70.13, 71.09, 71.62, 73.43, 73.11, 72.90),
            (_TINY, "vgg16"): (42.11, 41.93, 41.77, 42.83, 44.67, 43.25),
            (_TINY, "resnet18"): (46.77, 47.73, 48.31, 49.38, 49.57, 50.59),
        },
    ),
}

# Table 1's gains in percent of the plain optimizer's accuracy, in the order of its columns.
RELATIVE_GAINS = {
    (_CIFAR10, "vgg16"): (0.30, 0.12, 0.22, 0.11),
    (_CIFAR10, "resnet18"): (0.26, 0.52, 0.07, 0.03),
    (_CIFAR10, "resnet50"): (0.19, 0.45, 0.07, 0.06),
    (_CIFAR100, "vgg16"): (2.76, 0.18, 0.11, 0.46),
    (_CIFAR100, "resnet18"): (2.84, 0.19, 0.16, 0.81),
    (_CIFAR100, "resnet50"): (5.08, 0.57, 0.59, -0.05),
    (_TINY, "vgg16"): (6.53, 1.35, 2.69, 1.27),
    (_TINY, "resnet18"): (3.86, 0.93, 3.63, 1.50),
    (_TINY, "resnet50"): (11.15, 4.73, 2.40, 1.62),
}
