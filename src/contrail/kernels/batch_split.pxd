cimport cython

cdef Py_ssize_t _FIXED_BYTES
cdef Py_ssize_t _BODY_AT
cdef Py_ssize_t _I16_MAX

@cython.locals(
    view="const unsigned char*", end=Py_ssize_t, at=Py_ssize_t, drafts=list,
    number=Py_ssize_t,
    size=cython.longlong, body_bytes=cython.longlong, properties_at=Py_ssize_t,
    properties_bytes=Py_ssize_t, flag=cython.longlong, body=bytes, properties=bytes)
cpdef list split_units(bytes batch, object draft, Py_ssize_t count_max)

cdef object _illegal(Py_ssize_t number, str problem)

@cython.locals(value=cython.longlong)
cdef long long _i32(const unsigned char* view, Py_ssize_t at) noexcept
