"""The DHT of one node: its driver and what it remembers."""
