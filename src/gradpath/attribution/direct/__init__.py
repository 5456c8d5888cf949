"""Methods that are not paths: each is a function of one batch."""
