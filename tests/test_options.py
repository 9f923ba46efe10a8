"""Options made of dataclasses: what they accept, what they refuse, what their help says."""

import dataclasses
import pathlib
from typing import Annotated

import pytest

from examples import train
from examples.training import checks, data, models, options, recipes
from examples.training.checks import Setting
from examples.training.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Options:
    parts: Annotated[tuple[str, ...], Setting("what", choices=("a", "b"))] = ()
    count: Annotated[int | None, Setting("how many", low=1, high=9, unset="all")] = None
    many: Annotated[int, Setting("of them", low=0)] = 5
    rate: Annotated[float, Setting("how fast", above=0)] = 0.5
    share: Annotated[float, Setting("how much", low=0, high=1)] = 0.5
    bold: Annotated[bool, Setting("whether it dares")] = True
    folder: Annotated[pathlib.Path | None, Setting("where")] = None
    picture: Annotated[pathlib.Path | None, Setting("what of", file=True)] = None
    name: Annotated[str | None, Setting("its name", folder_name=True)] = None
    ends: Annotated[tuple[float, ...] | None, Setting("from, to", above=0, count=2)] = None


def read(*arguments):
    groups = {"options": options.group(Options)}
    return options.read("program", "What it does.", groups, list(arguments), ["parts"])


def test_values_have_the_type_of_their_field():
    assert read() == {
        "parts": (),
        "count": None,
        "many": 5,
        "rate": 0.5,
        "share": 0.5,
        "bold": True,
        "folder": None,
        "picture": None,
        "name": None,
        "ends": None,
    }
    found = read("a", "b", "--count=3", "--rate", "1e-3", "--no-bold", "--ends", "1", "2.5")
    assert found["parts"] == ("a", "b")
    assert (found["count"], found["rate"], found["bold"]) == (3, 1e-3, False)
    assert found["ends"] == (1.0, 2.5)


@pytest.mark.parametrize("form", ["--folder=~/runs", "--folder ~/runs"])
def test_the_home_folder_is_expanded(form, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert read(*form.split())["folder"] == pathlib.Path("/home/somebody/runs")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("c", "Argument `parts` must be one of a, b. Received: parts='c'"),
        ("--count 0", "Argument `count` must be an integer from 1 to 9. Received: count=0"),
        ("--count 10", "Argument `count` must be an integer from 1 to 9. Received: count=10"),
        ("--count 2.0", "must be an integer from 1 to 9. Received: count='2.0'"),
        ("--count", "Missing value for argument '--count'."),
        ("--many -1", "Argument `many` must be an integer of at least 0. Received: many=-1"),
        ("--many 2147483648", "Argument `many` must be at most 2147483647."),
        ("--rate 0", "Argument `rate` must be a number above 0. Received: rate=0.0"),
        ("--rate nan", "Argument `rate` must be a number above 0. Received: rate=nan"),
        ("--rate inf", "Argument `rate` must be a number above 0. Received: rate=inf"),
        ("--share 1.5", "Argument `share` must be a number from 0 to 1. Received: share=1.5"),
        ("--ends 1", "Missing value for argument '--ends'."),
        ("--ends 1 -2", "Argument `ends` must be a number above 0. Received: ends=-2.0"),
        ("--folder=", "`folder` must be a valid path. Received: folder=''"),
        ("--folder=a\0b", "`folder` must be a valid path. Received: folder=a"),
        ("--picture .", "`picture` must be a file, not a folder or a device. Received: picture=."),
        ("--picture /dev/null", "`picture` must be a file, not a folder or a device."),
        ("--name=", "Argument `name` must be the name of a folder. Received: name=''"),
        ("--name a/b", "Argument `name` must be the name of a folder. Received: name='a/b'"),
        ("--name ..", "Argument `name` must be the name of a folder. Received: name='..'"),
        ("--name=a\0b", "Argument `name` must be the name of a folder. Received: name='a"),
        (f"--name {'x' * 999}", f"must be the name of a folder. Received: name='{'x' * 499}..."),
        (f"--name {'x' * 256}", "must be the name of a folder. Received: name='xxx"),
        ("--cou 3", "there is no option --cou 3: see --help"),
        ("--bold yes", "Argument `parts` must be one of a, b. Received: parts='yes'"),
    ],
)
def test_what_is_refused_is_named(arguments, complaint):
    with pytest.raises(UsageError) as error:
        read(*arguments.split())
    assert complaint in str(error.value)


def test_a_dataclass_is_held_against_the_same_ranges():
    checks.check(Options(count=9))
    for wrong in (
        {"count": 10},
        {"count": True},
        {"rate": "fast"},
        {"bold": 1},
        {"ends": (1.0,)},
        {"parts": ("c",)},
    ):
        with pytest.raises(UsageError, match=f"Argument `{next(iter(wrong))}` must be"):
            checks.check(Options(**wrong))


def test_the_help_says_range_and_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        read("--help")
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert "What it does." in told
    for line in (
        "how many (from 1 to 9; default: all)",
        "of them (at least 0; default: 5)",
        "how fast (above 0; default: 0.5)",
        "whether it dares (default: yes)",
        "what",
    ):
        assert line in told


def test_every_setting_of_a_run_is_an_option_of_the_training_program():
    given = [field.name for group in train.GROUPS.values() for field in group]
    assert sorted(given) == sorted(
        [*checks.fields(recipes.Settings), *checks.fields(train.Options)]
    )
    stated = {field.name for field in dataclasses.fields(recipes.Settings)}
    assert stated - set(given) == {"optimizer_arguments"}


def test_the_help_of_the_optimizer_keeps_what_defines_an_argument(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        train.main(["--help"])
    told = capsys.readouterr().out
    for sentence in (
        "the decay of the average gradient norm `e_t`",
        "added to the root of the second moment",
        "an upper bound on `e_t / ||g_t||`",
        "the largest L2 norm of a variable's gradient",
    ):
        assert sentence in told


def test_names_are_those_of_the_networks_and_of_the_data_sets():
    assert tuple(models.MODELS) == recipes.MODELS
    assert tuple(data.DATASETS) == recipes.DATASETS
    assert set(data._SOURCES) == set(recipes.DATASETS)
