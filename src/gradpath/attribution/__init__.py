"""From prompts to scores. ``attribute`` has the equation."""
