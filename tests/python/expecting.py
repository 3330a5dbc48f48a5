"""Errors that a test wants."""
import contextlib


@contextlib.contextmanager
def error(kind, *words):
    """The block must raise an exception of this kind whose text has these words."""
    try:
        yield
    except kind as raised:
        text = str(raised)
        for word in words:
            assert word in text, f"wanted {word!r} in: {text}"
    else:
        raise AssertionError(f"wanted {kind.__name__} with {words}, nothing was raised")
