"""The pairs of `keras_adanorm.registry` by name, for programs that list them in their options."""

import ast
import importlib.util
import pathlib


def read():
    """The names of all Norm variants and of their plain optimizers, `{variant: plain}`.

    The registry's text is read: to import it takes the seconds that Keras takes, which nobody
    wants to wait for `--help` or for a message about an option.
    """
    package = pathlib.Path(importlib.util.find_spec("keras_adanorm").origin).parent
    tree = ast.parse((package / "registry.py").read_text(encoding="utf-8"))
    (pairs,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PLAIN_OF"
    )
    return {
        ast.unparse(variant): ast.unparse(plain).rpartition(".")[2]
        for variant, plain in zip(pairs.keys, pairs.values, strict=True)
    }
