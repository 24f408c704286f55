"""Starting the ranks of real runs."""
