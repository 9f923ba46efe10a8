"""The folder of a search: whose it is, and how its files are read."""

import hashlib
import json
import pathlib

from examples.training import records
from examples.training.errors import RunError, UsageError
from examples.training.locks import FOLDER_LOCK

IDENTITY = "search.json"


class SearchError(RunError):
    """Why a search cannot go on, and what can be done. What it has found so far is kept."""


def name_of(identity):
    """A name that equal searches share, and others do not."""
    settings = identity["settings"]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    optimizer = identity["space"]["optimizer"]
    return "-".join([settings["dataset"], settings["model"], optimizer, identity["tuner"], digest])


def read_json(path, advice=""):
    """What a JSON file holds, which must be an object.

    Args:
        path: Path of the file.
        advice: A sentence that ends the message, what to do about a file that is damaged.

    Raises:
        SearchError: Naming the file, if it is missing or damaged.
    """
    try:
        content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except FileNotFoundError as error:
        raise SearchError(f"{path} is missing. {advice}".rstrip()) from error
    except OSError as error:
        raise SearchError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SearchError(f"{path} is damaged ({error}). {advice}".rstrip()) from error
    return content


def read_record(path):
    """A run's record.

    Raises:
        RecordError: Naming the file, if it is missing, damaged or no record.
    """
    try:
        return records.read(path)
    except FileNotFoundError as error:
        raise records.RecordError(f"{path} is missing") from error
    except (OSError, RecursionError) as error:
        raise records.RecordError(f"{path} cannot be read: {error}") from error


def write_json(path, content):
    """Writes JSON, whole or not at all."""
    with records.replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def claim(folder, identity):
    """Marks a new folder as this search's.

    Raises:
        UsageError: If it is another's, in the words of the first difference.
        SearchError: If the file that says whose it is, is damaged.
    """
    path = folder / IDENTITY
    # A folder of the search's own name can be no other's.
    ours = folder.name == name_of(identity)
    if path.exists():
        other = "Choose another --project-name."
        check(folder, identity, "Delete it, and the same command goes on." if ours else other)
        return
    if not ours and _holds_files(folder):
        raise UsageError(
            f"{folder} is not empty and holds no search. Choose another --project-name."
        )
    write_json(path, identity)


def _holds_files(folder):
    return any(path.name != FOLDER_LOCK for path in folder.iterdir())


def check(folder, identity, advice=""):
    """Raises UsageError unless the folder holds this search."""
    difference = _difference(read_json(folder / IDENTITY, advice), identity)
    if difference:
        raise UsageError(
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
