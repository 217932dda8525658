"""Sinks: other programs in which people watch a run, such as TensorBoard.

A sink never slows, blocks or ends a run. The event loop puts items into a bounded queue, and a thread of the sink's own
takes them out. An item that does not fit is dropped and counted.
"""
