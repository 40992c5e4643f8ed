"""The command line, `python -m lazybench` or `lazybench`: exit code, and one line for an error."""

import os
import signal
import sys


def script() -> int:
    """`main`, for a process: SIGTERM, as schedulers send it, stops it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    onward = "goes on where it stopped" if sys.argv[1:2] in (["run"], ["calibrate"], ["match"]) else "starts anew"
    try:
        code = main()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        # Where it fell into an `exec` of a string, such as `@dataclass` makes, CPython would end the process by the
        # signal even though it is caught, and with no exit code; the next such `exec` makes it forget.
        exec("")
        print(f"\nlazybench: stopped; the same command {onward}", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # who read the output has gone
        return 1


def main() -> int:
    """Run one command; bad input ends in one line and exit code 2."""
    try:
        from lazybench.cli import commands
        from lazybench.errors import LazyBenchError
        from lazyllm import LazyLLMError

        return commands.start(sys.argv[1:])
    except ModuleNotFoundError as error:
        return _fail(
            f"the package {error.name!r} is missing: scripts/quickstart sets LazyBench up, or pip install -e ."
        )
    except (LazyBenchError, LazyLLMError) as error:
        return _fail(str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        return _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part is not None))


def _fail(message: str) -> int:
    from lazybench.errors import one_line

    print(f"lazybench: {one_line(message)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(script())
