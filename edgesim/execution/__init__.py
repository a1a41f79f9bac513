"""What is computed, by whom, and what a run that was cut off needs to go on."""
