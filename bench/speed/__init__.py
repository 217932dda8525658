"""`make bench`: how small, how fast, how soon and how lean, each row beside a baseline.

A topic is a file whose rows `__main__` collects: `sizes`, `speeds`, `update`, `fanout`, `rounds` and others. From the
same rows `report` makes the table, the JSON and the page's table.
"""
