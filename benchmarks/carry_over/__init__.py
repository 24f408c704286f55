"""How far the steps of a small proxy carry to another task."""
