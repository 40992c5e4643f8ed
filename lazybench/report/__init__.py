"""Tables, figures and one page of HTML from the runs that `analysis` reads: only the command line imports this.

`caveats` says what to know about rows, `write.write` makes the report, and `figures.style` is the look of all plots.
"""
