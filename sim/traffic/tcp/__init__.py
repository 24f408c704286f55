"""TCP of stock hosts: what it is set to, and how its windows open."""
