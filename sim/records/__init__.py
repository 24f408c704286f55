"""Results: runs, events and scores, their files, and conclusions from them."""
