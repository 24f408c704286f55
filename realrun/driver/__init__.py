"""The cluster driver: schemes on the wall clock, and the log that each rank keeps."""
