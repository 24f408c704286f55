"""Maps of networks: tables of regions, graphs, and descriptions of other simulators and schedulers."""
