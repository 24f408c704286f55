"""The forms in which a scenario writes networks, as settings: sites, graphs, links that vary."""
