"""The device catalogue: one TOML file a device, every number with its unit, source and year. Read by world.profiles."""
