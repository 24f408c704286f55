"""Other people's measurements, predicted by one command; see ``__main__``."""
