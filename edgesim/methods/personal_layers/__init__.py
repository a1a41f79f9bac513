"""What methods share whose devices have some layers of the model in common and keep the others to themselves."""
