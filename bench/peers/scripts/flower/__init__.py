"""A Flower app: `app.py` and its project file."""
