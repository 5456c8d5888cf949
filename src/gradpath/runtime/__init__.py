"""The machine: files, and several processes on one piece of work."""
