"""Edge servers: aggregators between devices and server, which are the server's devices and the devices' servers."""
