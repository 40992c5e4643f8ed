"""Tables, figures and one page of HTML from run folders."""
