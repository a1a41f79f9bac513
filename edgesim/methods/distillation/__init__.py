"""Base of methods whose devices keep their models and exchange answers on public samples."""
