"""Read files of the hub: through its local cache, and without asking a hub that is out of reach for minutes."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from lazybench.errors import LazyBenchError, first_line

_TIMEOUT = 5  # seconds, for each address of the host


class OutOfReach(LazyBenchError):
    """The hub may have the files, and this machine has no network or no access."""


@cache
def why_unreachable() -> str | None:
    """Ask the hub once in a process; return why it is out of reach, None if it answers."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE=1 is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=_TIMEOUT)
    except Exception as error:  # of the library's HTTP client, which changes
        return f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})"
    return None


@contextmanager
def explain_errors(name: str, advice: str, is_local: bool = False) -> Iterator[bool]:
    """Describe errors of the body, which reads files; yields whether to read only the local cache.

    Args:
        name: the name of the files, for messages.
        advice: how else to get them, for messages.
        is_local: whether the files are on this machine, so that the hub is not needed.

    Raises:
        LazyBenchError: the body raised an error about local files, or about the files' content.
        OutOfReach: it raised an error about files of the hub.
    """
    offline = None if is_local else why_unreachable()
    try:
        yield offline is not None
    except LazyBenchError:
        raise
    except Exception as error:  # broken files raise errors of many libraries
        reason = f"{offline}, and the local cache lacks it" if offline else first_line(error)
        kind = OutOfReach if offline or (isinstance(error, OSError) and not is_local) else LazyBenchError
        raise kind(f"{name} cannot be loaded: {reason} ({advice})") from error
