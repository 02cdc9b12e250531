"""The engines: found, started, kept alive, looked at. Nothing in here decides where a request goes."""
