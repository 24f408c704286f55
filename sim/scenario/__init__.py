"""The scenario file: its format, and changes to it before it is checked."""
