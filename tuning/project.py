"""The folder of a search: whose it is, and what is found in it."""

import hashlib
import json

from examples.training import records
from examples.training.errors import RunError
from examples.training.locks import FOLDER_LOCK

IDENTITY = "search.json"


def name_of(identity):
    """A name that equal searches share, and others do not."""
    settings = identity["settings"]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    optimizer = identity["space"]["optimizer"]
    return "-".join([settings["dataset"], settings["model"], optimizer, identity["tuner"], digest])


def claim(folder, identity):
    """Marks a new folder as this search's.

    Raises:
        RunError: If it is another's, in the words of the first difference.
    """
    if (folder / IDENTITY).exists():
        check(folder, identity)
        return
    if any(path.name != FOLDER_LOCK for path in folder.iterdir()):
        raise RunError(f"{folder} is not empty and holds no search. Choose another --project-name.")
    with records.replacing(folder / IDENTITY) as temporary:
        temporary.write_text(json.dumps(identity, indent=1) + "\n")


def check(folder, identity):
    """Raises RunError unless the folder holds this search."""
    path = folder / IDENTITY
    try:
        saved = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} cannot be read: {error}. Chief and workers need one folder that they share."
        ) from error
    difference = _difference(saved, identity)
    if difference:
        raise RunError(
            f"{folder} holds another search: {difference}. Choose another --project-name, or "
            "leave it out."
        )


def _difference(saved, wanted):
    """The first entry in which two identities differ, in words, or None."""
    saved, wanted = _flat(saved), _flat(wanted)
    for name in saved | wanted:
        there, here = saved.get(name), wanted.get(name)
        if there != here:
            return f"its {name} is {there}, not {here}"
    return None


def _flat(value, prefix=""):
    if not isinstance(value, dict):
        return {prefix: value}
    flat = {}
    for name, part in value.items():
        flat |= _flat(part, f"{prefix}.{name}" if prefix else name)
    return flat
