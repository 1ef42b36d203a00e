cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_layout as record_layout

@cython.locals(
    view="const unsigned char*", end=Py_ssize_t, at=Py_ssize_t, drafts=list,
    number=Py_ssize_t,
    size=cython.longlong, body_bytes=cython.longlong, body_at=Py_ssize_t, properties_at=Py_ssize_t,
    properties_bytes=Py_ssize_t, flag=cython.longlong, body=bytes, properties=bytes)
cpdef list split_units(bytes batch, object draft, Py_ssize_t count_max)

cdef object _illegal(Py_ssize_t number, str problem)
