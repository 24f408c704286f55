"""What happened: runs, events and scores, their files, and what is concluded from them."""
