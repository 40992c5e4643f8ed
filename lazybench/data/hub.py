"""Whether the hub can be asked: its library retries for minutes where it cannot."""

from functools import cache

from lazybench.errors import LazyBenchError

# Seconds for one request. A host may have several addresses, and each is tried for as long.
_TIMEOUT = 5


class OutOfReach(LazyBenchError):
    """What the hub may hold and this machine cannot have: no network, or no access."""


@cache
def unreachable() -> str | None:
    """Why the hub cannot be asked, found out once with one request; None where it can.

    Only its local cache is of use then.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE=1 is set"
    try:
        answer = get_session().head(constants.ENDPOINT, timeout=_TIMEOUT)
    except Exception as error:  # by the library's version: its HTTP client's own
        return f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})"
    return f"{constants.ENDPOINT} answers with {answer.status_code}" if answer.status_code >= 500 else None
