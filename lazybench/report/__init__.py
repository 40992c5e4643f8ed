"""Tables, figures and one page of HTML from run folders.

What others use: `reading.find` reads runs, `blocks.blocks` puts them into rows, `caveats` says what to know about them,
and `write.write` makes the report. `averages` and `intervals` make numbers of records, `console` prints tables, and
`figures.style` is the look of all plots.
"""
