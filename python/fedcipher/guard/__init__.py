"""The guard: a process between a site's SuperNode and the apps of runs. Only frames leave the site."""
