cimport cython

cdef Py_ssize_t _FIXED_BYTES
cdef long long _MAGIC_V1
cdef long long _MAGIC_V2
cdef long long _BORN_HOST_V6
cdef long long _STORE_HOST_V6
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
    view="const unsigned char*", length=Py_ssize_t, magic=cython.longlong,
    sys_flag=cython.longlong, stored_at=Py_ssize_t, body_at=Py_ssize_t,
    body_bytes=cython.longlong, body_end=Py_ssize_t, at=Py_ssize_t, properties_at=Py_ssize_t,
    name_end=Py_ssize_t, value_at=Py_ssize_t, end=Py_ssize_t, name_bytes=Py_ssize_t,
    deletes=bytes, topic=bytes, key=bytes, nonce=bytes, stored_ms=object, out=object, seconds=object,
    delay=object, deliver=object, rolled=object, queue=object, asked=object)
cpdef tuple read_timer(bytes record)

@cython.locals(view="const unsigned char*", at=Py_ssize_t, place=Py_ssize_t, is_negative=cython.bint)
cdef object _number(bytes record, Py_ssize_t start, Py_ssize_t end)

@cython.locals(value=cython.longlong)
cdef long long _i32(const unsigned char* view, Py_ssize_t at) noexcept

@cython.locals(value=cython.longlong, low=cython.longlong)
cdef long long _i64(const unsigned char* view, Py_ssize_t at) noexcept
