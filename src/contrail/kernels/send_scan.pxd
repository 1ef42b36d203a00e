cimport cython
cimport contrail.kernels.bare_bytes as raw_bytes
cimport contrail.kernels.bare_layout as record_layout
cimport contrail.kernels.bare_rows as send_rows
from contrail.kernels cimport frame_scan
from contrail.kernels.frame_scan cimport Send

cdef int _A_QUEUE_ID
cdef int _A_BORN_TIME
cdef int _AN_OPAQUE
cdef int _A_KEY
cdef int _PROPERTIES
cdef int _A_TOPIC
cdef int _THE_END
cdef object _NO_ROWS


cdef class _Pattern:
    cdef Py_ssize_t header_at
    cdef Py_ssize_t count
    cdef int[6] kinds
    cdef Py_ssize_t[6] starts
    cdef Py_ssize_t[6] ends


@cython.locals(
    view="const unsigned char*", available=Py_ssize_t, count=Py_ssize_t, text_bytes=Py_ssize_t,
    position=Py_ssize_t, total=cython.longlong, header_bytes=cython.longlong, texts=bytearray,
    consumed=Py_ssize_t, topics=list)
cpdef tuple scan_sends(
    bytes buffer, Py_ssize_t frame_bytes_max, Py_ssize_t header_bytes_max, bytes suffix)

@cython.locals(
    table="long long*", target="unsigned char*", send=Send, strict=_Pattern, loose=_Pattern,
    wide=_Pattern, position=Py_ssize_t, text_before=Py_ssize_t, text_at=Py_ssize_t,
    text_end=Py_ssize_t, at=Py_ssize_t, frame_end=Py_ssize_t, header_at=Py_ssize_t, header_end=Py_ssize_t, topic=bytes,
    is_json=cython.bint, _=Py_ssize_t)
cdef Py_ssize_t _fill_rows(
    const unsigned char* view, object rows, bytearray texts, bytes suffix,
    Py_ssize_t count, list topics) except -2

@cython.locals(taken=tuple)
cdef bint _take_apart(
    const unsigned char* view, Py_ssize_t position, Py_ssize_t header_end, Py_ssize_t frame_end,
    Send send) except -1

@cython.locals(text_end=Py_ssize_t)
cdef Py_ssize_t _put_properties(
    const unsigned char* view, unsigned char* target, Py_ssize_t text_at, Send send,
    bytes suffix) except -2

@cython.locals(moved=Py_ssize_t, text_end=Py_ssize_t, key_bytes=Py_ssize_t)
cdef Py_ssize_t _repeat_properties(
    const unsigned char* view, unsigned char* target, Py_ssize_t text_before, Py_ssize_t text_at,
    Send send) noexcept

@cython.locals(key_at=Py_ssize_t, key_end=Py_ssize_t)
cdef int _learn(
    _Pattern strict, _Pattern loose, _Pattern wide, const unsigned char* view,
    Py_ssize_t header_at, Py_ssize_t header_end, Py_ssize_t text_at, Send send) except -1

cdef bint _are_quoted(const unsigned char* view, Send send) noexcept

cdef int _begin_pattern(
    _Pattern pattern, Py_ssize_t header_at, Py_ssize_t header_end, Send send) except -1

@cython.locals(at=Py_ssize_t)
cdef int _add_value(_Pattern pattern, int kind, Py_ssize_t start, Py_ssize_t end) except -1

@cython.locals(point=cython.int)
cdef Py_ssize_t _escaped_place(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t length) except -1

@cython.locals(
    same_from=Py_ssize_t, index=Py_ssize_t, length=Py_ssize_t, kind=cython.int,
    packed=Py_ssize_t, start=Py_ssize_t, number=cython.longlong, zero_led=cython.bint)
cdef bint _fits(
    _Pattern pattern, const unsigned char* view, Py_ssize_t at, Py_ssize_t end,
    Send send) except -1

cdef bint _note_number(int kind, long long number, bint zero_led, Send send) noexcept

@cython.locals(odd=cython.uchar, byte=cython.uchar, index=Py_ssize_t)
cdef bint _is_plain(const unsigned char* view, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(index=Py_ssize_t)
cdef Py_ssize_t _copy(
    const unsigned char* source, Py_ssize_t at, Py_ssize_t end, unsigned char* target,
    Py_ssize_t to) noexcept
