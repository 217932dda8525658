"""Plans a run before it begins: what a run file gets wrong, and what a run will cost in bytes, memory and hours.

Everything is arithmetic on a run file and on the facts of its model, its data and the machines. Nothing here opens a
socket or changes a state directory.
"""
