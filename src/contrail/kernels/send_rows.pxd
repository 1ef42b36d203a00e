# No C types: compiled kernels take ``bare_rows.pxd`` under this module's name instead.
