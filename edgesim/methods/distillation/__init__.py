"""What methods share whose devices keep their models, and tell each other what these say of public samples."""
