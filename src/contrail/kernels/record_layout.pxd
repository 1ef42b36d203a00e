# No C types: compiled kernels take ``bare_layout.pxd`` under this module's name instead.
