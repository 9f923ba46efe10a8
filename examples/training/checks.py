"""Settings and options: what each is for, and the values that it may have, stated once.

    @dataclasses.dataclass
    class Options:
        rounds: Annotated[int, Setting("rounds that are timed", low=1)] = 31

`check` holds a value against it, wherever it comes from; `examples.training.options` makes options
of a command line of it.
"""

import dataclasses
import errno
import math
import numbers
import os
import pathlib
import types
import typing

from examples.training.errors import UsageError

# TensorFlow counts with 32 bits in many places.
LARGEST = 2**31 - 1
_LONGEST_QUOTE = 500


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is said of a field of a dataclass, in `Annotated[type, Setting(...)]`.

    The type is `int`, `float`, `str`, `bool` or `pathlib.Path`, or one of these or `None`, or a
    tuple of one of these.

    Args:
        help: What it is for, in words.
        low, high: The smallest and the largest number that is allowed, `high` only with `low`. An
            integer without `high` is at most `LARGEST`.
        above: What a number has to be larger than.
        choices: The strings that are allowed.
        unset: What stands in for `None`, in words, such as `"a tenth"`.
        metavar: What a value is called in the help. Defaults to a word for its type.
        count: Of a tuple: how many values it has to have. Defaults to any number.
        least: Of a tuple: how many values it has to have at least.
        repeated: Of a tuple of texts: whether each value has the option before it.
        folder_name: Of a text: whether it has to be a name that a folder can have.
        file: Of a path: whether what stands there, if anything does, has to be a file.
    """

    help: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    unset: str = ""
    metavar: str = ""
    count: int | None = None
    least: int = 0
    repeated: bool = False
    folder_name: bool = False
    file: bool = False

    def allowed(self, value_type):
        """What is allowed, in words: `"an integer of at least 1"`."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.folder_name:
            return "the name of a folder"
        if self.file:
            return "a file, not a folder or a device"
        noun = {
            int: "an integer",
            float: "a number",
            bool: "true or false",
            str: "a text",
            pathlib.Path: "a valid path",
        }[value_type]
        range_ = self.range().replace("at least", "of at least")
        return f"{noun} {range_}" if range_ else noun

    def range(self):
        """The range of a number in words, such as `"from 1 to 10"`, or nothing."""
        if self.above is not None:
            return f"above {self.above:g}"
        if self.low is None:
            return ""
        return f"at least {self.low}" if self.high is None else f"from {self.low} to {self.high}"

    def check(self, name, value, value_type):
        """Raises a UsageError that names the argument, unless the value is allowed."""
        fits = {
            int: _is_integer,
            float: _is_number,
            bool: lambda value: isinstance(value, bool),
            str: lambda value: isinstance(value, str),
            pathlib.Path: _is_path,
        }[value_type](value)
        if fits and value_type in (int, float):
            fits = (
                (self.low is None or value >= self.low)
                and (self.high is None or value <= self.high)
                and (self.above is None or value > self.above)
            )
        if fits and self.choices:
            fits = value in self.choices
        if fits and self.folder_name:
            fits = names_a_folder(value)
        if fits and self.file:
            fits = value.is_file() or value.is_fifo() or not value.exists()
        if not fits:
            raise refused(name, self.allowed(value_type), value)
        if value_type is int and value > LARGEST and self.high is None:
            raise refused(name, f"at most {LARGEST}", value)


def names_a_folder(value):
    """Whether a value is a name that a file or a folder can have, and no path."""
    if not isinstance(value, str) or value in ("", ".", ".."):
        return False
    return pathlib.PurePath(value).name == value and _is_path(pathlib.PurePath(value))


def refused(name, allowed, value):
    """The error of a value that is not allowed."""
    return UsageError(f"Argument `{name}` must be {allowed}. Received: {name}={_quoted(value)}")


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a dataclass that has a `Setting`.

    Args:
        name: Its name.
        setting: Its `Setting`.
        value_type: Its type, without `None` and without the tuple around it.
        optional: Whether it may be `None`.
        many: Whether it is a tuple.
        default: Its default, or `dataclasses.MISSING`.
    """

    name: str
    setting: Setting
    value_type: type
    optional: bool
    many: bool
    default: object

    def check(self, value):
        """Raises a UsageError unless the field may have this value."""
        if value is None and self.optional:
            return
        values = value if self.many else (value,)
        if self.many and self.setting.count not in (None, len(value)):
            raise refused(self.name, f"{self.setting.count} values", value)
        if self.many and len(value) < self.setting.least:
            allowed = f"{self.setting.allowed(self.value_type)}, at least {self.setting.least}"
            raise UsageError(f"Argument `{self.name}` must be {allowed}. Received none")
        for one in values:
            self.setting.check(self.name, one, self.value_type)


def fields(cls):
    """The fields of a dataclass that have a `Setting`, as `{name: Field}`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    stated = {}
    for field in dataclasses.fields(cls):
        annotation = hints[field.name]
        settings = [m for m in getattr(annotation, "__metadata__", ()) if isinstance(m, Setting)]
        if settings:
            value_type, optional, many = _parts(annotation.__origin__)
            stated[field.name] = Field(
                field.name, settings[0], value_type, optional, many, field.default
            )
    return stated


def check(instance):
    """Checks all fields of a dataclass that have a `Setting`; raises a UsageError."""
    for name, field in fields(type(instance)).items():
        field.check(getattr(instance, name))


def check_integer(name, value, low, high=None, limit=""):
    """Raises a `UsageError` unless `value` is an integer from `low` to `high`.

    Args:
        name: the argument's name.
        value: what was passed.
        low, high: the smallest and the largest allowed integer; no limit where `high` is None.
        limit: what the largest allowed integer is, for the message.
    """
    if _is_integer(value) and low <= value and (high is None or value <= high):
        return
    allowed = (
        f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    )
    raise refused(name, f"{allowed}, {limit}" if limit else allowed, value)


def _parts(annotation):
    """The type in `int | None`, `tuple[int, ...]` or both, and which of the two it is in."""
    optional = many = False
    if isinstance(annotation, types.UnionType):
        optional = True
        (annotation,) = (part for part in annotation.__args__ if part is not types.NoneType)
    if typing.get_origin(annotation) is tuple:
        many = True
        annotation = annotation.__args__[0]
    return annotation, optional, many


def _is_integer(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_path(value):
    """Whether the system can take the path, be there a file or not."""
    try:
        os.lstat(value)
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    except (TypeError, ValueError):  # no path; a null character in it
        return False
    return True


def _quoted(value):
    told = repr(value) if isinstance(value, str) else f"{value}"
    return told if len(told) <= _LONGEST_QUOTE else f"{told[:_LONGEST_QUOTE]}..."
