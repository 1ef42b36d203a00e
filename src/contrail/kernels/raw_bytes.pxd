# No C types: compiled kernels take ``bare_bytes.pxd`` under this module's name instead.
