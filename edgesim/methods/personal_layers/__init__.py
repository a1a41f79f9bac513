"""Base of methods whose devices share some layers of the model and keep the other layers to themselves."""
