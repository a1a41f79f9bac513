"""Parts as a user of the package would write them, named in scenarios as "tests.outside.module:Class"."""
