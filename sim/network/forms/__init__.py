"""Forms of networks in a scenario, as settings: sites, graphs, varying links."""
