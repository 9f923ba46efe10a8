"""What all command lines promise of wrong options."""


def assert_refused(main, arguments, capsys, prog, complaint):
    """One line on the error output that names the program and the mistake, and status 2."""
    try:
        status = main(arguments)
    except SystemExit as exit:
        status = exit.code
    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"python -m {prog}: error: ")
    assert complaint in printed.err
