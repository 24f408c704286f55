"""A page that prices recorded trajectories anew, in the reader's browser: ``law.js`` and ``view.js``."""
