"""Pieces of Markdown that the reports share."""


def table(rows):
    """A table of a list of rows of text, the first of them its header."""
    header, *rest = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([header, "|---" * len(rows[0]) + "|", *rest])


def device(record):
    """What a record was measured on: its GPUs, or its processor."""
    found = record["device"]
    return ", ".join(found["gpus"]) or f"{found['cores']} cores of {found['processor']}"
