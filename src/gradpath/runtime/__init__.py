"""Files, locks and distributed runs."""
