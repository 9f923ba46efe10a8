"""How the programs end: one line and a status, whatever ends them."""

import importlib
import os
import pathlib
import signal
import time

import pytest

from examples.training import command_line
from examples.training.errors import DivergedError, RecordError, UsageError
from tests.support import child

PROGRAM = "python -m examples.some"
PROGRAMS = [
    "examples.train",
    "examples.demo",
    "examples.show_batch",
    "examples.plot_run",
    "examples.study.reproduce",
    "examples.study.report",
    "examples.benchmarks.step_time",
    "examples.benchmarks.accelerator",
    "examples.benchmarks.data_speed",
    "examples.benchmarks.step_share",
    "tuning.search",
    "tuning.compare",
    "tuning.memory",
    "tuning.report",
    "tuning.tables",
]


def failing(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (UsageError("Argument `x`\nis wrong"), 2, "Argument `x` is wrong"),
        (DivergedError("The loss is nan."), 1, "The loss is nan."),
        (RecordError("one.json is not a record"), 1, "one.json is not a record"),
        (PermissionError(13, "Permission denied", "/file"), 1, "error: Permission denied: /file"),
        (ImportError("No module named 'x'"), 1, "This needs: pip install -e '.[examples]'"),
        (KeyboardInterrupt(), 130, "interrupted; the same command goes on"),
    ],
)
def test_what_ends_a_program_is_told_on_one_line(error, status, told, capsys):
    assert command_line.run(PROGRAM, failing(error), "the same command goes on") == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"{PROGRAM}: error: ") and printed.err.count("\n") == 1
    assert told in printed.err


def test_a_fault_of_the_program_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        command_line.run(PROGRAM, failing(ZeroDivisionError()))


def test_an_interrupt_that_became_another_error_is_an_interrupt(capsys):
    """As an import does to it that is interrupted in the middle."""

    def action():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        except KeyboardInterrupt:
            raise SystemError("initialization failed") from None

    before = signal.getsignal(signal.SIGINT)
    assert command_line.run(PROGRAM, action) == 130
    assert capsys.readouterr().err == f"{PROGRAM}: error: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is before


SWALLOWED = """
import os, signal, sys, time
from examples.training import command_line

class Interrupted:
    def __del__(self):  # lets no exception through
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

def action():
    Interrupted()
    time.sleep(30)
    return 0

sys.exit(command_line.run("python -m examples.some", action, "the same command goes on"))
"""


def test_an_interrupt_that_a_callback_swallows_ends_the_program():
    process = child.start(["-c", SWALLOWED])
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == f"{PROGRAM}: error: interrupted; the same command goes on\n"


def test_an_interrupt_that_was_swallowed_comes_again(capsys, monkeypatch):
    monkeypatch.setattr(command_line, "REPEAT_AFTER", 0.05)

    def action():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        except KeyboardInterrupt:
            time.sleep(60)
            pytest.fail("went on")

    assert command_line.run(PROGRAM, action) == 130
    assert capsys.readouterr().err == f"{PROGRAM}: error: interrupted\n"


IN_TEXT = """
import os, signal, sys, time
from examples.training import command_line

def action():
    exec("os.kill(os.getpid(), signal.SIGINT); time.sleep(30)")

sys.exit(command_line.run("python -m examples.some", action))
"""


def test_an_interrupt_inside_of_a_text_that_is_executed_ends_with_the_status(tmp_path, monkeypatch):
    """`dataclasses` and `namedtuple` execute texts, so that most imports do."""
    (tmp_path / "some_program.py").write_text(IN_TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    process = child.start(["-m", "some_program"])
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, f"{PROGRAM}: error: interrupted\n")


LEAVING = """
import atexit, os, signal, sys, time
from examples.training import command_line

def action():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)

atexit.register(os.abort)
print("said before")
sys.exit(command_line.run("python -m {program}", action))
"""


@pytest.mark.parametrize(("program", "status"), [("leaving", 130), ("another", -signal.SIGABRT)])
def test_an_interrupted_program_ends_at_once(program, status, tmp_path, monkeypatch):
    """Libraries that are half imported may not live through Python's own end."""
    (tmp_path / "leaving.py").write_text(LEAVING.format(program=program))
    monkeypatch.syspath_prepend(tmp_path)
    process = child.start(["-m", "leaving"])
    output, error = process.communicate(timeout=60)
    assert process.returncode == status
    assert error.startswith(f"python -m {program}: error: interrupted\n")
    assert program == "another" or output == "said before\n"


WHILE_IMPORTING = """
import os, signal, sys, time
sys.argv[:] = ["-m"]  # so it is until the program itself has been found
sys.orig_argv[1:] = ["-m", "{package}.some"]
import {package}
os.kill(os.getpid(), signal.SIGINT)
time.sleep(30)
"""


@pytest.mark.parametrize("package", ["examples", "tuning"])
def test_an_interrupt_before_a_program_is_imported_is_told(package):
    process = child.start(["-c", WHILE_IMPORTING.format(package=package)])
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, f"python -m {package}.some: error: interrupted\n")


def test_who_imports_the_packages_keeps_the_handler():
    code = "import signal; b = signal.getsignal(2); import examples, tuning"
    assert child.output(child.start(["-c", f"{code}; print(signal.getsignal(2) is b)"])) == "True\n"


@pytest.mark.parametrize("printed", ["\\udcff", "\\xe9"])
def test_what_the_terminal_cannot_show_is_no_error(printed):
    action = f"lambda: print('{printed}') or 0"
    code = f"from examples.training import command_line; command_line.run('some', {action})"
    said = child.output(child.start(["-c", code], PYTHONIOENCODING="ascii"))
    assert said == f"{printed}\n"


def test_a_program_without_an_output_runs(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    assert command_line.run(PROGRAM, lambda: print("told") or 0) == 0


def test_a_request_to_end_is_obeyed(capsys):
    def action():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    assert command_line.run(PROGRAM, action) == 143
    assert capsys.readouterr().err == f"{PROGRAM}: error: interrupted\n"


def test_nothing_heavy_is_imported_before_interrupts_are_handled():
    heavy = {"keras", "tensorflow", "matplotlib", "scipy", "tensorflow_datasets"}
    code = (
        "import importlib, sys\n"
        f"for program in {PROGRAMS!r}:\n"
        "    importlib.import_module(program)\n"
        f"    assert not sys.modules.keys() & {heavy!r}, program"
    )
    child.output(child.start(["-c", code]))


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_has_help(program):
    told = child.output(child.start(["-m", program, "--help"]))
    assert f"python -m {program}" in told


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_refuses_what_it_does_not_know(program, capsys):
    assert importlib.import_module(program).main(["--no-such-option"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"python -m {program}: error: ") and "--no-such-option" in line


def test_programs_are_all_of_them():
    root = pathlib.Path(child.ROOT)
    found = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for folder in ("examples", "tuning")
        for path in (root / folder).rglob("*.py")
        if "loops" not in path.parts and "PROGRAM =" in path.read_text(encoding="utf-8")
    }
    assert found == set(PROGRAMS)
