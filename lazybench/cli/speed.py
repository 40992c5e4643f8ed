"""`lazybench speed`: time a method at each prompt length, and show and write a table."""

from pathlib import Path

from lazybench.analysis.console import frame_table
from lazybench.config import SpeedConfig
from lazybench.report.figures.drawings import speed_by_length
from lazybench.speed.measure import measure
from lazybench.store.writing import check_writable, writing

# The printed table: each column's title, its name and its format. A ratio above 1 is better.
_COLUMNS = (
    ("tokens", "tokens", "{}"),
    ("TTFT s", "ttft_s", "{:.3g}"),
    ("method's", "method_ttft_s", "{:.3g}"),
    ("TTFT speedup", "ttft_speedup", "{:.2f}"),
    ("over nothing pruned", "ttft_speedup_over_nothing_pruned", "{:.2f}"),
    ("decode step speedup", "decode_step_speedup", "{:.2f}"),
    ("over nothing pruned", "decode_step_speedup_over_nothing_pruned", "{:.2f}"),
    ("generation speedup", "generation_speedup", "{:.2f}"),
)


def main(config: SpeedConfig) -> int:
    """Measure and print the table; with `output=` also write it, and a plot next to it."""
    if config.output is not None:
        check_writable(Path(config.output).parent)  # measuring takes long
    measured = measure(config)
    print(frame_table(measured, _COLUMNS))
    if noisy := measured["noisy"].sum():
        print(f"two times of the unmodified model differ by more than 10% in {noisy} repeats: end other work here")
    if config.output is not None:
        output = Path(config.output.removesuffix(".csv") + ".csv")
        with writing(output):
            output.parent.mkdir(parents=True, exist_ok=True)
            measured.to_csv(output, index=False, float_format="%.5g")
        files = [output, *speed_by_length(measured, output.with_suffix(""))]
        print(f"saved in {', '.join(map(str, files))}")
    return 0
