"""Physical values with units: strings such as "20 Mbit/s" become SI floats; distributions stand for one value a device."""
