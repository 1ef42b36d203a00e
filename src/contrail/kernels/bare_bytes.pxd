# The functions of ``raw_bytes`` for compiled kernels, on bare pointers. A kernel
# cimports this file under that name. The caller made the room, as there.
from cpython.array cimport array, clone
from cpython.bytearray cimport PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memchr, memcmp, memcpy

cdef extern from *:
    """
    #include <string.h>

    static const char contrail_decimal_pairs[201] =
        "00010203040506070809101112131415161718192021222324252627282930313233343536373839"
        "40414243444546474849505152535455565758596061626364656667686970717273747576777879"
        "8081828384858687888990919293949596979899";
    static const char contrail_hex_pairs[513] =
        "000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F"
        "202122232425262728292A2B2C2D2E2F303132333435363738393A3B3C3D3E3F"
        "404142434445464748494A4B4C4D4E4F505152535455565758595A5B5C5D5E5F"
        "606162636465666768696A6B6C6D6E6F707172737475767778797A7B7C7D7E7F"
        "808182838485868788898A8B8C8D8E8F909192939495969798999A9B9C9D9E9F"
        "A0A1A2A3A4A5A6A7A8A9AAABACADAEAFB0B1B2B3B4B5B6B7B8B9BABBBCBDBEBF"
        "C0C1C2C3C4C5C6C7C8C9CACBCCCDCECFD0D1D2D3D4D5D6D7D8D9DADBDCDDDEDF"
        "E0E1E2E3E4E5E6E7E8E9EAEBECEDEEEFF0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF";

    /* Swapped as a whole: GCC 12 makes thirty steps of a number written by bytes. */
    #if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    static inline void contrail_put_i32(unsigned char *target, unsigned long long value) {
        unsigned int swapped = __builtin_bswap32((unsigned int)value);
        memcpy(target, &swapped, 4);
    }
    static inline void contrail_put_i64(unsigned char *target, unsigned long long value) {
        value = __builtin_bswap64(value);
        memcpy(target, &value, 8);
    }
    static inline unsigned int contrail_u32(const unsigned char *source) {
        unsigned int value;
        memcpy(&value, source, 4);
        return __builtin_bswap32(value);
    }
    #else
    static inline void contrail_put_i32(unsigned char *target, unsigned long long value) {
        for (int at = 3; at >= 0; at--, value >>= 8) target[at] = (unsigned char)value;
    }
    static inline void contrail_put_i64(unsigned char *target, unsigned long long value) {
        for (int at = 7; at >= 0; at--, value >>= 8) target[at] = (unsigned char)value;
    }
    static inline unsigned int contrail_u32(const unsigned char *source) {
        return (unsigned int)source[0] << 24 | (unsigned int)source[1] << 16
            | (unsigned int)source[2] << 8 | source[3];
    }
    #endif

    #if defined(__GNUC__)
    #define contrail_expect(place) __builtin_prefetch(place)
    #else
    #define contrail_expect(place) ((void)(place))
    #endif
    """
    void contrail_expect(const unsigned char* place) noexcept nogil
    void contrail_put_i32(unsigned char* target, unsigned long long value) noexcept nogil
    void contrail_put_i64(unsigned char* target, unsigned long long value) noexcept nogil
    unsigned int contrail_u32(const unsigned char* source) noexcept nogil
    const char* contrail_decimal_pairs
    const char* contrail_hex_pairs


cdef inline void expect(const unsigned char* view, Py_ssize_t at) noexcept:
    contrail_expect(view + at)


cdef inline bytearray blank(Py_ssize_t size):
    return PyByteArray_FromStringAndSize(NULL, size)


cdef inline array blank_rows(array like, Py_ssize_t number_count):
    return clone(like, number_count, False)


cdef inline long long* numbers(array rows, Py_ssize_t number_count) except? NULL:
    if len(rows) < number_count:
        raise IndexError(f"{len(rows)} numbers where there should be {number_count}")
    return rows.data.as_longlongs


cdef inline Py_ssize_t grow(bytearray target, Py_ssize_t size) except -1:
    cdef Py_ssize_t before = len(target)
    PyByteArray_Resize(target, before + size)
    return before


cdef inline int cut(bytearray target, Py_ssize_t size) except -1:
    return PyByteArray_Resize(target, size)


cdef inline const unsigned char* begin(const unsigned char[::1] view) except? NULL:
    return &view[0] if view.shape[0] else NULL


cdef inline bytes first(const unsigned char* source, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char*> source, size)


cdef inline Py_ssize_t copy(
    unsigned char* target, Py_ssize_t to, const unsigned char* source, Py_ssize_t at,
    Py_ssize_t end
) noexcept nogil:
    if end <= at:
        return to
    memcpy(target + to, source + at, end - at)
    return to + end - at


cdef inline Py_ssize_t put_text(unsigned char* target, Py_ssize_t to, bytes text) noexcept:
    cdef Py_ssize_t size = len(text)
    memcpy(target + to, <const unsigned char*> text, size)
    return to + size


cdef inline bint holds(
    const unsigned char* source, Py_ssize_t at, Py_ssize_t end, bytes text, Py_ssize_t rare_at
) noexcept:
    cdef const unsigned char* wanted = text
    cdef Py_ssize_t size = len(text)
    cdef const unsigned char* place = source + at + rare_at
    # Behind this the rest of the text has no room.
    cdef const unsigned char* stop = source + end - size + rare_at + 1
    while place < stop:
        place = <const unsigned char*> memchr(place, wanted[rare_at], stop - place)
        if place == NULL:
            return False
        if memcmp(place - rare_at, wanted, size) == 0:
            return True
        place += 1
    return False


cdef inline bint stands(const unsigned char* source, Py_ssize_t at, bytes text) noexcept:
    return memcmp(source + at, <const unsigned char*> text, len(text)) == 0


cdef inline bint spells(
    const unsigned char* source, Py_ssize_t at, Py_ssize_t end, bytes text
) noexcept:
    return end - at == len(text) and stands(source, at, text)


cdef inline bint same(
    const unsigned char* source, Py_ssize_t at, Py_ssize_t other, Py_ssize_t size
) noexcept nogil:
    return memcmp(source + at, source + other, size) == 0


cdef inline Py_ssize_t place_of(
    const unsigned char* source, Py_ssize_t at, Py_ssize_t end, unsigned char byte
) noexcept nogil:
    cdef const unsigned char* place
    if at >= end:
        return end
    place = <const unsigned char*> memchr(source + at, byte, end - at)
    return end if place == NULL else place - source


cdef inline long long u16(const unsigned char* source, Py_ssize_t at) noexcept nogil:
    return source[at] << 8 | source[at + 1]


cdef inline long long u32(const unsigned char* source, Py_ssize_t at) noexcept nogil:
    return contrail_u32(source + at)


cdef inline long long i32(const unsigned char* source, Py_ssize_t at) noexcept nogil:
    return <int> contrail_u32(source + at)


cdef inline long long i64(const unsigned char* source, Py_ssize_t at) noexcept nogil:
    cdef unsigned long long high = contrail_u32(source + at)
    return <long long> (high << 32 | contrail_u32(source + at + 4))


cdef inline bint is_i32(long long value) noexcept nogil:
    return value == <int> value


cdef inline void put_i16(
    unsigned char* target, Py_ssize_t at, unsigned long long value
) noexcept nogil:
    target[at] = <unsigned char> (value >> 8)
    target[at + 1] = <unsigned char> value


cdef inline void put_i32(
    unsigned char* target, Py_ssize_t at, unsigned long long value
) noexcept nogil:
    contrail_put_i32(target + at, value)


cdef inline void put_i64(
    unsigned char* target, Py_ssize_t at, unsigned long long value
) noexcept nogil:
    contrail_put_i64(target + at, value)


cdef inline Py_ssize_t put_decimal(
    unsigned char* target, Py_ssize_t at, long long value
) noexcept nogil:
    cdef unsigned long long rest = <unsigned long long> value
    cdef unsigned long long bound = 10
    cdef Py_ssize_t digits = 1
    cdef Py_ssize_t place
    cdef unsigned int pair
    if value < 0:
        target[at] = 45
        at += 1
        rest = 0 - rest
    # No number of 64 bits with a sign has more than 19 digits, so the bound does not overflow.
    while digits < 19 and rest >= bound:
        bound *= 10
        digits += 1
    place = at + digits
    while rest > 9:
        pair = <unsigned int> (rest % 100)
        rest //= 100
        place -= 2
        memcpy(target + place, contrail_decimal_pairs + 2 * pair, 2)
    if place > at:
        target[at] = <unsigned char> (48 + rest)
    return at + digits


cdef inline Py_ssize_t put_hex(
    unsigned char* target, Py_ssize_t at, unsigned long long value
) noexcept nogil:
    cdef int index
    for index in range(8):
        memcpy(
            target + at + 2 * index,
            contrail_hex_pairs + 2 * ((value >> (56 - 8 * index)) & 0xFF),
            2,
        )
    return at + 16


cdef inline long long ascii_hash(
    const unsigned char* source, Py_ssize_t at, Py_ssize_t end, long long seed
) noexcept nogil:
    cdef unsigned int value = <unsigned int> seed
    cdef unsigned int first, second, third, fourth
    while end - at >= 4:
        first = source[at]
        second = source[at + 1]
        third = source[at + 2]
        fourth = source[at + 3]
        if (first | second | third | fourth) > 127:
            return -1
        # Powers of 31.
        value = value * 923521 + first * 29791 + second * 961 + third * 31 + fourth
        at += 4
    while at < end:
        if source[at] > 127:
            return -1
        value = value * 31 + source[at]
        at += 1
    return value
