cimport cython

cdef unsigned int _I32_MAX
cdef unsigned int _U32_MASK
cdef long long _U32_SPAN

@cython.locals(value=cython.uint, byte=cython.uchar)
cpdef object java_hash(bytes text)

cdef str _decode(bytes text)

@cython.locals(value=cython.uint, position=Py_ssize_t, high=cython.uint, low=cython.uint)
cdef object _hash_code_units(bytes units)

cdef long long _signed(unsigned int value)
