"""From measurements to correction factors, and from predictions to their errors."""
