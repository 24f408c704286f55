"""Tasks of one paper each, and networks of papers on images."""
