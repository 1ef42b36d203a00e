# No C types: compiled kernels take ``bare_crc.pxd`` under this module's name instead.
