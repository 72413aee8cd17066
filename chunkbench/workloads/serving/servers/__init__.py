"""The systems that can be measured. Each kind of server has a module."""
