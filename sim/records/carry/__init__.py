"""How far the steps of a verdict carry: break-even, what was studied, rounds."""
