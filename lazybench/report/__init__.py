"""Tables, figures and one page of HTML from the runs that `analysis` reads: only the command line imports this."""
