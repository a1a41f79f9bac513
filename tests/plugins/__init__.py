"""Parts from outside the package, named in scenarios as "tests.plugins.module:Class"."""
