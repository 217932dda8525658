"""The node: trains on a volunteer's machine, keeps its momentum there, and sends only its largest components."""
