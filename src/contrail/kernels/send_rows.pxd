# No C types: constants that compiled kernels take over when they are imported.
