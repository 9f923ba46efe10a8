"""Command lines made of dataclasses: each option is a field with a `Setting`.

    values = options.read(PROGRAM, __doc__, {"options": options.group(Options)}, arguments)

`tyro` reads the command line and writes the help; the values are checked by `checks`. `~` stands
for the home folder in every option that is a path. A mistake is a UsageError.
"""

import contextlib
import dataclasses
import io
import pathlib
import typing

from examples.training import checks
from examples.training.errors import UsageError

_METAVARS = {int: "INT", float: "NUMBER", str: "TEXT", pathlib.Path: "PATH"}


class _Refused(Exception):
    """Carries a UsageError through tyro, which would put any ValueError into a box."""


def group(cls, names=None, **defaults):
    """The options of a dataclass's fields.

    Args:
        cls: Dataclass with a `checks.Setting` on each of these fields.
        names: The fields, in their order. Defaults to `None`: all that have a `Setting`.
        **defaults: Defaults by name, where they are others than those of the dataclass.

    Returns:
        List of `checks.Field`.
    """
    fields = checks.fields(cls)
    return [
        dataclasses.replace(fields[name], default=defaults.get(name, fields[name].default))
        for name in (fields if names is None else names)
    ]


def read(prog, doc, groups, arguments=None, positional=(), partly=False, where=""):
    """Reads a command line.

    Args:
        prog: What the user types, `"python -m examples.train"`.
        doc: The docstring of the program, for its help.
        groups: Dictionary from the title of a group of options to a list of `checks.Field`.
        arguments: List of strings. Defaults to `None`: those of the process.
        positional: Names of the fields that are given without an option.
        partly: Boolean, whether what is not known is left alone, `--help` included.
        where: What is said of an option that is not known, such as "with optimizer Adam".

    Returns:
        Dictionary of the values by name.

    Raises:
        UsageError: If an option is not known, or its value is not allowed.
    """
    import tyro

    command = dataclasses.make_dataclass(
        "Command",
        [(title.replace(" ", "_"), _dataclass(of, positional)) for title, of in groups.items()],
    )
    command.__doc__ = ""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            parsed, unknown = tyro.cli(
                command,
                prog=prog,
                description=doc,
                args=arguments,
                return_unknown_args=True,
                add_help=not partly,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except _Refused as error:
        raise error.__cause__ from None
    except SystemExit as exit:
        if not exit.code:
            raise
        raise UsageError(_without_box(printed.getvalue())) from None
    if unknown and not partly:
        told = " ".join([*unknown, where]).strip()
        raise UsageError(f"there is no option {told}: see --help")
    values = {}
    for title, of in groups.items():
        parsed_group = getattr(parsed, title.replace(" ", "_"))
        for field in of:
            value = getattr(parsed_group, field.name)
            field.check(value)
            values[field.name] = value
    return values


def _dataclass(fields, positional):
    made = dataclasses.make_dataclass(
        "Options",
        [(field.name, _annotation(field, positional), *_default(field)) for field in fields],
    )
    made.__doc__ = ""
    return made


def _default(field):
    if field.default is dataclasses.MISSING:
        return ()
    return (dataclasses.field(default=field.default),)


def _annotation(field, positional):
    """The field's type as tyro takes it, with its help."""
    import tyro

    setting = field.setting
    marks = [
        tyro.conf.arg(
            help=setting.help,
            help_behavior_hint=_hint(field),
            metavar=setting.metavar or None,
        )
    ]
    value_type = field.value_type
    if field.many:
        value_type = tuple[
            (field.value_type,) * setting.count if setting.count else (field.value_type, ...)
        ]
    if field.optional:
        value_type |= None
    if setting.repeated:
        marks.append(tyro.conf.UseAppendAction)
    elif field.value_type is not bool:
        marks.append(_constructor(field))
    if field.name in positional:
        marks.append(tyro.conf.Positional)
    return typing.Annotated[value_type, *marks]


def _constructor(field):
    """How the texts on the command line become the field's value."""
    import tyro

    setting = field.setting
    metavar = setting.metavar or (
        f"{{{','.join(setting.choices)}}}" if setting.choices else _METAVARS[field.value_type]
    )

    if field.many and not setting.count:
        metavar += " ..."

    def construct(texts):
        try:
            values = tuple(_value(field, text) for text in texts)
            value = values if field.many else values[0]
            if values:  # that there is none is told after what is not known
                field.check(value)
            return value
        except UsageError as error:
            raise _Refused from error

    many = setting.count or "*"
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=many if field.many else 1,
        metavar=metavar,
        instance_from_str=construct,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
    )


def _value(field, text):
    """One value from its text."""
    try:
        if field.value_type is not pathlib.Path:
            return field.value_type(text)
        if text:  # an empty text, such as of a variable that is not set, is not the current folder
            return pathlib.Path(text).expanduser()
    except (ValueError, RuntimeError):  # no number; no home folder
        pass
    raise checks.refused(field.name, field.setting.allowed(field.value_type), text)


def _hint(field):
    """What is said of the default and of the range, in brackets."""
    setting, default = field.setting, field.default
    told = []
    if field.value_type in (int, float) and not field.many:
        told += filter(None, [setting.range()])
    if default is dataclasses.MISSING:
        told += ["required"]
    elif setting.unset:
        told += [f"default: {setting.unset}"]
    elif default not in (None, ()):
        told += [f"default: {_shown(default)}"]
    return f"({'; '.join(told)})" if told else ""


def _shown(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"


def _without_box(text):
    """What tyro says in a box, on one line and without the pointer to the help below it."""
    _, *lines = (line.strip("│╭╮╰╯─ ") for line in text.strip().splitlines())
    told = lines[: lines.index("")] if "" in lines else lines
    return " ".join(told).replace(" Expected 1 values.", "")
