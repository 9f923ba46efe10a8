"""What the command lines of the examples and of the tuning share: help, and errors of one line."""

import argparse
import sys


class Parser(argparse.ArgumentParser):
    """A parser whose help is a module's docstring, and whose errors are one line with status 2.

    Args:
        prog: What the user types, `"python -m examples.train"`.
        doc: The docstring: its first paragraph stands above the options, the rest below.
        **kwargs: As in `argparse.ArgumentParser`.
    """

    def __init__(self, prog, doc, **kwargs):
        summary, _, rest = doc.partition("\n\n")
        super().__init__(prog=prog, description=summary, epilog=rest, allow_abbrev=False, **kwargs)

    def error(self, message):
        sys.exit(complain(self.prog, message, 2))


class DefaultsHelp(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help that tells each default; one that is None is told in words, by the text itself."""

    def _get_help_string(self, action):
        return super()._get_help_string(action) if action.default is not None else action.help


def counted(number, noun):
    """A number with its noun.

    >>> counted(1, "epoch"), counted(2, "epoch")
    ('1 epoch', '2 epochs')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def complain(prog, reason, status):
    """Says on one line why a program ends, and returns the status that it ends with."""
    print(f"{prog}: error: {' '.join(str(reason).split())}", file=sys.stderr)
    return status
