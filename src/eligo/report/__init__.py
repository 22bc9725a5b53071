"""Tables, intervals, plots, pictures and HTML pages; independent of the families."""
