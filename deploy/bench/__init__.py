"""`make bench`: how small, how fast, how soon and how lean, each row beside a baseline.

A topic is a file whose rows `__main__` collects: `sizes`, `speeds`, `rounds`, `memory`, and where they are there
`compress`, `fanout` and `gpu`. `report` writes the table, the JSON and the plot from the same rows.
"""
