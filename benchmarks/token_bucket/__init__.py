"""All-reduces behind token buckets: measured on one machine, and modelled packet by packet."""
