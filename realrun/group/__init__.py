"""The processes of a real run, and their rendezvous."""
