"""The catalogue of links: one TOML file a link, every number with its unit, source and year. Read by link_profiles."""
