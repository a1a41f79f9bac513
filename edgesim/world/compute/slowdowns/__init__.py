"""Why a computation takes longer than undisturbed: one module a family of models, listed in its PLUGINS."""
