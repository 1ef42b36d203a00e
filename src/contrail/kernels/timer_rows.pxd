cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_layout as record_layout

cdef Py_ssize_t _DIGITS_MAX
cdef bytes _OUT
cdef bytes _SECONDS
cdef bytes _DELAY
cdef bytes _DELIVER
cdef bytes _ROLLED
cdef bytes _DELETES
cdef bytes _TOPIC
cdef bytes _QUEUE
cdef bytes _KEY
cdef bytes _NONCE

@cython.locals(
    view="const unsigned char*", length=Py_ssize_t, extra=Py_ssize_t, stored_at=Py_ssize_t,
    at=Py_ssize_t, properties_at=Py_ssize_t, name_end=Py_ssize_t, value_at=Py_ssize_t, end=Py_ssize_t, name_bytes=Py_ssize_t,
    deletes=bytes, topic=bytes, key=bytes, nonce=bytes, stored_ms=object, out=object, seconds=object,
    delay=object, deliver=object, rolled=object, queue=object, asked=object)
cpdef tuple read_timer(bytes record)

@cython.locals(view="const unsigned char*", at=Py_ssize_t, place=Py_ssize_t, is_negative=cython.bint)
cdef object _number(bytes record, Py_ssize_t start, Py_ssize_t end)
