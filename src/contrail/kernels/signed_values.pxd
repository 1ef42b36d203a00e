cimport cython
cimport contrail.kernels.bare_bytes as raw_bytes
from contrail.kernels cimport frame_scan

cdef Py_ssize_t FIELDS_MAX
cdef Py_ssize_t _PREFIX_BYTES
cdef int _LATE_FIELD_BEGINS


cdef class _Fields:
    cdef Py_ssize_t count
    cdef Py_ssize_t[48] names
    cdef Py_ssize_t[48] name_ends
    cdef Py_ssize_t[48] values
    cdef Py_ssize_t[48] value_ends
    cdef int[48] value_marks


@cython.locals(
    view="const unsigned char*", available=Py_ssize_t, total=cython.longlong,
    header_bytes=cython.longlong, at=Py_ssize_t, end=Py_ssize_t, header_end=Py_ssize_t,
    frame_end=Py_ssize_t, fields=_Fields, content=bytearray, target="unsigned char*",
    length=Py_ssize_t, access_key=Py_ssize_t, signature=Py_ssize_t, value=Py_ssize_t,
    index=Py_ssize_t)
cpdef tuple join_signed(bytes buffer, Py_ssize_t start, bytes named)

@cython.locals(
    is_noted=cython.bint, packed=Py_ssize_t, name_at=Py_ssize_t, name_end=Py_ssize_t)
cdef bint _scan_header(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end, _Fields fields) except -1

@cython.locals(packed=Py_ssize_t, name_at=Py_ssize_t, name_end=Py_ssize_t)
cdef Py_ssize_t _scan_fields(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end, _Fields fields) except -2

@cython.locals(at=Py_ssize_t, order=Py_ssize_t, index=Py_ssize_t)
cdef bint _note(
    _Fields fields, const unsigned char* view, Py_ssize_t name_at, Py_ssize_t name_end,
    Py_ssize_t value_at, Py_ssize_t packed) except -1

cdef Py_ssize_t _order(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end, Py_ssize_t other,
    Py_ssize_t other_end) noexcept
