"""The fuzz test: calls drawn at random, and what must come of them. See `generate.py`."""
