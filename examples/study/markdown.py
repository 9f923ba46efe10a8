"""Pieces of Markdown that the reports share."""

import re


def table(rows):
    """A table of a list of rows of text, the first of them its header."""
    header, *rest = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([header, "|---" * len(rows[0]) + "|", *rest])


def render(text, parts):
    """The text with what stands between `<!-- name -->` and `<!-- end -->` written anew.

    Args:
        text: Markdown.
        parts: Dictionary from the name in a marker to the function that makes what follows it.
            With `<!-- name: argument -->` the function is given the argument.

    >>> render("<!-- sum: 3 -->\\nold\\n<!-- end -->", {"sum": lambda text: f"{text} + 1"})
    '<!-- sum: 3 -->\\n3 + 1\\n<!-- end -->'
    """

    def made(match):
        arguments = [match["argument"]] if match["argument"] else []
        return f"{match['start']}{parts[match['name']](*arguments)}\n{match['end']}"

    names = "|".join(map(re.escape, parts))
    start = rf"(?P<start><!-- (?P<name>{names})(: (?P<argument>\S+))? -->\n)"
    return re.sub(rf"{start}.*?(?P<end><!-- end -->)", made, text, flags=re.DOTALL)


def marked(text, name):
    """What stands between the markers of a name, on one line; nothing where they are not."""
    match = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    return " ".join(match[1].split()) if match else ""


def device(record):
    """What a record was measured on: its GPUs, or its processor."""
    machine = record["device"]
    cores = "1 core" if machine["cores"] == 1 else f"{machine['cores']} cores"
    return ", ".join(machine["gpus"]) or f"{cores} of {machine['processor']}"
