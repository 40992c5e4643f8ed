"""Whether the hub is within reach: if not, its libraries would retry for minutes."""

from functools import cache

from lazybench.errors import LazyBenchError

_TIMEOUT = 5  # seconds, for each address of the host


class OutOfReach(LazyBenchError):
    """The hub may have it, and this machine has no network or no access."""


@cache
def unreachable() -> str | None:
    """Ask the hub once in a process; return why it is out of reach, None if it answers."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE=1 is set"
    try:
        status = get_session().head(constants.ENDPOINT, timeout=_TIMEOUT).status_code
    except Exception as error:  # of the library's HTTP client, which changes
        return f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})"
    return f"{constants.ENDPOINT} answers with {status}" if status >= 500 else None
