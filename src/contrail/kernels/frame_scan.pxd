cimport cython

cdef int _PULL_SEEN
cdef int _OTHER_SEEN
cdef long long _SEND_V2
cdef long long _SEND_BATCH
cdef long long _PULL
cdef long long _LITE_PULL
cdef long long _RESPONSE_FLAG
cdef Py_ssize_t _FIELDS_MAX
cdef Py_ssize_t _KEY_BYTES_MAX
cdef Py_ssize_t _VALUE_BYTES_MAX
cdef int _ESCAPED
cdef int _NOT_ASCII
cdef int _REQUIRED_LETTERS
cdef Py_ssize_t _DIGITS_MAX
cdef long long _I32_MAX

@cython.locals(
    view="const unsigned char*", available=Py_ssize_t, position=Py_ssize_t, places=list,
    total=cython.longlong)
cpdef tuple split_frames(bytes buffer, Py_ssize_t start, Py_ssize_t frame_bytes_max)

@cython.locals(
    view="const unsigned char*", available=Py_ssize_t, position=Py_ssize_t, items=list,
    kinds=cython.int, total=cython.longlong, header_bytes=Py_ssize_t, header_start=Py_ssize_t,
    header_end=Py_ssize_t, frame_end=Py_ssize_t, item=tuple)
cpdef tuple scan_frames(
    bytes buffer, Py_ssize_t start, Py_ssize_t frame_bytes_max, Py_ssize_t header_bytes_max,
    bytes born_host, bytes suffix)

@cython.locals(
    code=cython.longlong, flag=cython.longlong, opaque=cython.longlong,
    version=cython.longlong, language=str, remark=object, fields=dict, sends=tuple, pull=tuple,
    header_start=Py_ssize_t, packed=Py_ssize_t, key_start=Py_ssize_t, key_end=Py_ssize_t, kind=cython.int,
    value_start=Py_ssize_t, number=cython.longlong, body=bytes)
cdef tuple _scan_json(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end,
    Py_ssize_t frame_end, bytes born_host, bytes suffix)

@cython.locals(
    stable=bytearray, queue_offset=cython.longlong, count_max=cython.longlong,
    commit_offset=cython.longlong, count=Py_ssize_t, packed=Py_ssize_t, key_start=Py_ssize_t,
    key_end=Py_ssize_t, value_start=Py_ssize_t)
cdef tuple _scan_pull(const unsigned char* view, Py_ssize_t at, Py_ssize_t end)

@cython.locals(number=cython.longlong, digit=cython.int)
cdef long long _digits(const unsigned char* view, Py_ssize_t at, Py_ssize_t end) except -2

@cython.locals(
    producer_group=bytes, topic=bytes, default_topic=bytes, properties=bytes,
    default_queue_count=cython.longlong, queue_id=cython.longlong, sys_flag=cython.longlong,
    born=cython.longlong, flag=cython.longlong, times=cython.longlong,
    reconsume_max=cython.longlong, is_batch=cython.bint, seen=cython.int, count=Py_ssize_t,
    packed=Py_ssize_t, key_start=Py_ssize_t, key_end=Py_ssize_t, key_bytes=Py_ssize_t,
    marks=cython.int, value_start=Py_ssize_t, value_end=Py_ssize_t, letter=cython.int, raw=bytes,
    number=cython.longlong, features=cython.int, unique_key=bytes, draft=tuple, found=tuple)
cdef tuple _scan_send(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end, bytes body,
    bytes born_host, bytes suffix)

@cython.locals(
    view="const unsigned char*", end=Py_ssize_t, features=cython.int, key_start=Py_ssize_t,
    key_end=Py_ssize_t, at=Py_ssize_t, name_start=Py_ssize_t, name_end=Py_ssize_t,
    value_start=Py_ssize_t, first=cython.int)
cpdef tuple look_over(bytes properties)

@cython.locals(
    packed=Py_ssize_t, key_start=Py_ssize_t, name=str, value_start=Py_ssize_t, value=object)
cdef Py_ssize_t _scan_fields(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end,
    dict fields) except -2

@cython.locals(marks=cython.int, byte=cython.int)
cdef Py_ssize_t _string_end(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end) except -2

cdef Py_ssize_t _scalar_end(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end) except -2

@cython.locals(start=Py_ssize_t)
cdef Py_ssize_t _number_end(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end) except -2

cdef bint _is_integer(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(negative=cython.bint, value=cython.longlong)
cdef long long _integer(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end) except? -7777777

cdef bint _is_true(const unsigned char* view, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(byte=cython.int)
cdef bint _is_plain(const unsigned char* view, Py_ssize_t at, Py_ssize_t end) except -1

cdef bint _same(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end, bytes name) except -1

@cython.locals(byte=cython.uchar)
cdef bint _starts(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end, bytes name) except -1

@cython.locals(raw=bytes)
cdef object _text(
    const unsigned char* view, Py_ssize_t start, Py_ssize_t end, int marks)

@cython.locals(found=bytes)
cdef bytes _raw(
    const unsigned char* view, Py_ssize_t start, Py_ssize_t end, int marks)

cdef bint _is_utf8(bytes text) except -1

@cython.locals(
    out=bytearray, target="unsigned char*", at=Py_ssize_t, length=Py_ssize_t, byte=cython.int,
    point=cython.int)
cdef bytes _unescaped(
    const unsigned char* view, Py_ssize_t start, Py_ssize_t end)

cdef int _escape(int byte) noexcept

@cython.locals(value=cython.int, index=Py_ssize_t, byte=cython.int, digit=cython.int)
cdef int _hex4(const unsigned char* view, Py_ssize_t at) except -2

@cython.locals(value=cython.longlong)
cdef long long _u32(const unsigned char* view, Py_ssize_t at) except -1
