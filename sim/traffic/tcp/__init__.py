"""TCP of stock hosts: its settings, and how its windows open."""
