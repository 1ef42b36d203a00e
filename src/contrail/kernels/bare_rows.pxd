# The columns of ``send_rows``, for compiled kernels: numbers that the compiler knows. A kernel
# cimports this file under that name; a test holds both to the same numbers.
cdef enum:
    OPAQUE = 0
    ONE_WAY = 1
    QUEUE_ID = 2
    SYS_FLAG = 3
    BORN_MS = 4
    FLAG = 5
    TIMES = 6
    TOPIC_BYTES = 7
    BODY_AT = 8
    BODY_END = 9
    PROPERTIES_AT = 10
    PROPERTIES_END = 11
    KEY_AT = 12
    KEY_END = 13
    KEYS_AT = 14
    KEYS_END = 15
    TAGS_AT = 16
    TAGS_END = 17
    IS_FIFO = 18
    QUEUE_OFFSET = 19
    PHYSICAL_OFFSET = 20
    RECORD_BYTES = 21
    ROW_NUMBERS = 22
