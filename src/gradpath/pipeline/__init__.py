"""From prompts to a measured circuit: the rooms below, put together."""
