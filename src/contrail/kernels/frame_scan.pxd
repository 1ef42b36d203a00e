cimport cython

cimport contrail.kernels.bare_bytes as raw_bytes

cdef int _PULL_SEEN
cdef int _OTHER_SEEN
cdef int _LEFT_SEEN
cdef int _SEND_SEEN
cdef bytes _SEND_BEGINS
cdef long long SEND_V2
cdef long long _SEND_BATCH
cdef long long _PULL
cdef long long _LITE_PULL
cdef long long _RESPONSE_FLAG
cdef Py_ssize_t _FIELDS_MAX
cdef Py_ssize_t _KEY_BYTES_MAX
cdef Py_ssize_t VALUE_BYTES_MAX
cdef int _ESCAPED
cdef int NOT_ASCII
cdef int _REQUIRED_LETTERS
cdef int _PROPERTIES_SEEN
cdef Py_ssize_t DIGITS_MAX
cdef long long I32_MAX
cdef tuple _TAKEN
cdef int TYPE_BINARY
cdef Py_ssize_t _BINARY_HEAD_BYTES


cdef class Send:
    cdef long long opaque
    cdef long long request_flag
    cdef long long version
    cdef long long code
    cdef Py_ssize_t group_at
    cdef Py_ssize_t group_end
    cdef int group_marks
    cdef Py_ssize_t topic_at
    cdef Py_ssize_t topic_end
    cdef int topic_marks
    cdef Py_ssize_t default_topic_at
    cdef Py_ssize_t default_topic_end
    cdef int default_topic_marks
    cdef Py_ssize_t properties_at
    cdef Py_ssize_t properties_end
    cdef int properties_marks
    cdef bint is_binary
    cdef Py_ssize_t opaque_at
    cdef Py_ssize_t opaque_end
    cdef Py_ssize_t queue_id_at
    cdef Py_ssize_t queue_id_end
    cdef Py_ssize_t born_at
    cdef Py_ssize_t born_end
    cdef long long default_queue_count
    cdef long long queue_id
    cdef long long sys_flag
    cdef long long born
    cdef long long flag
    cdef long long times
    cdef long long reconsume_max
    cdef bint is_batch
    cdef int features
    cdef Py_ssize_t key_at
    cdef Py_ssize_t key_end
    cdef Py_ssize_t keys_at
    cdef Py_ssize_t keys_end
    cdef Py_ssize_t tags_at
    cdef Py_ssize_t tags_end
    cdef bint is_fifo


@cython.locals(
    view="const unsigned char*", available=Py_ssize_t, position=Py_ssize_t, places=list,
    total=cython.longlong)
cpdef tuple split_frames(bytes buffer, Py_ssize_t start, Py_ssize_t frame_bytes_max)

@cython.locals(
    view="const unsigned char*", available=Py_ssize_t, position=Py_ssize_t, items=list,
    kinds=cython.int, total=cython.longlong, header_bytes=Py_ssize_t, header_start=Py_ssize_t,
    header_end=Py_ssize_t, frame_end=Py_ssize_t, item=tuple, send=Send, left=Py_ssize_t,
    bytes_left=Py_ssize_t)
cpdef tuple scan_frames(
    bytes buffer, Py_ssize_t start, Py_ssize_t frame_bytes_max, Py_ssize_t header_bytes_max,
    bytes born_host, bytes suffix, Py_ssize_t count_max=*, Py_ssize_t request_bytes_max=*)

@cython.locals(view="const unsigned char*", available=Py_ssize_t)
cpdef bint is_one_send(bytes buffer) except -1

cdef tuple scan_header(
    const unsigned char* view, int header_type, Py_ssize_t at, Py_ssize_t end,
    Py_ssize_t frame_end, Send send)

@cython.locals(
    code=cython.longlong, flag=cython.longlong, opaque=cython.longlong,
    version=cython.longlong, fields_at=Py_ssize_t, pull=tuple)
cdef tuple _scan_binary(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end, Py_ssize_t frame_end, Send send)

@cython.locals(
    seen=cython.int, count=Py_ssize_t, name_at=Py_ssize_t, value_at=Py_ssize_t, letter=cython.int)
cdef bint _scan_binary_send(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end, Send send) except -1

@cython.locals(
    stable=bytearray, queue_offset=cython.longlong, count_max=cython.longlong,
    commit_offset=cython.longlong, count=Py_ssize_t, start=Py_ssize_t, name_at=Py_ssize_t,
    name_end=Py_ssize_t, value_at=Py_ssize_t)
cdef tuple _scan_binary_pull(const unsigned char* view, Py_ssize_t at, Py_ssize_t end)

@cython.locals(name_bytes=Py_ssize_t, value_at=Py_ssize_t)
cdef Py_ssize_t _binary_value_at(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end) except -2

cdef int _binary_marks(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(
    code=cython.longlong, flag=cython.longlong, opaque=cython.longlong,
    opaque_at=Py_ssize_t, opaque_end=Py_ssize_t, version=cython.longlong,
    language_at=Py_ssize_t, language_end=Py_ssize_t, language=str, remark=object, fields=dict,
    is_send=cython.bint, pull=tuple, header_start=Py_ssize_t, packed=Py_ssize_t, key_start=Py_ssize_t,
    key_end=Py_ssize_t, kind=cython.int, value_start=Py_ssize_t, number=cython.longlong)
cdef tuple _scan_json(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end, Py_ssize_t frame_end, Send send)

@cython.locals(
    stable=bytearray, queue_offset=cython.longlong, count_max=cython.longlong,
    commit_offset=cython.longlong, count=Py_ssize_t, packed=Py_ssize_t, key_start=Py_ssize_t,
    key_end=Py_ssize_t, value_start=Py_ssize_t)
cdef tuple _scan_pull(const unsigned char* view, Py_ssize_t at, Py_ssize_t end)

@cython.locals(number=cython.longlong, digit=cython.int)
cdef long long _digits(const unsigned char* view, Py_ssize_t at, Py_ssize_t end) except -2

@cython.locals(
    seen=cython.int, count=Py_ssize_t, packed=Py_ssize_t, key_start=Py_ssize_t,
    key_bytes=Py_ssize_t, marks=cython.int, value_start=Py_ssize_t, value_end=Py_ssize_t,
    letter=cython.int)
cdef Py_ssize_t _scan_send(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end, Send send) except -2

cdef int _begin_send(Send send, bint is_binary) except -1

cdef int _note_field(
    const unsigned char* view, int letter, Py_ssize_t value_start, Py_ssize_t value_end,
    int marks, int seen, Send send) except -2

cdef int _note_number(int letter, long long number, int seen, Send send) except -2

@cython.locals(
    producer_group=bytes, topic=bytes, default_topic=bytes, properties=bytes, unique_key=bytes,
    draft=tuple)
cdef tuple _send_item(
    const unsigned char* view, Send send, bytes body, bytes born_host, bytes suffix)

@cython.locals(send=Send)
cpdef tuple look_over(bytes properties)

@cython.locals(
    features=cython.int, name_start=Py_ssize_t, name_end=Py_ssize_t, value_start=Py_ssize_t,
    first=cython.int, start=Py_ssize_t, seen=cython.ulonglong, one=cython.ulonglong,
    number=cython.int)
cdef int look_over_at(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end, Send send) except -1

@cython.locals(length=Py_ssize_t, count=Py_ssize_t)
cdef bint _is_named_before(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t name_start,
    Py_ssize_t name_end) except -1

@cython.locals(
    packed=Py_ssize_t, key_start=Py_ssize_t, name=str, value_start=Py_ssize_t, value=object)
cdef Py_ssize_t _scan_fields(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end,
    dict fields) except -2

@cython.locals(marks=cython.int, byte=cython.int)
cdef Py_ssize_t string_end(
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

cdef bint same(
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

@cython.locals(out=bytearray, length=Py_ssize_t)
cdef bytes _unescaped(
    const unsigned char* view, Py_ssize_t start, Py_ssize_t end)

@cython.locals(byte=cython.int, point=cython.int)
cdef Py_ssize_t unescape(
    const unsigned char* view, Py_ssize_t at, Py_ssize_t end, unsigned char* target,
    Py_ssize_t length) except -2

cdef int _escape(int byte) noexcept

@cython.locals(value=cython.int, index=Py_ssize_t, byte=cython.int, digit=cython.int)
cdef int hex4(const unsigned char* view, Py_ssize_t at) except -2
