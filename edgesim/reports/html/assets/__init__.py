"""Template, style sheet and script of the page of a report."""
