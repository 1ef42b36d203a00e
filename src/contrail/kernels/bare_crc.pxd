# The checksum of ``stretch_crc`` for compiled kernels, which cimport this file under that name.
#
# On x86 the checksum is folded sixteen bytes at a time by carry-less multiplication: Gopal et al.,
# "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009, with the
# constants that paper gives for zlib's polynomial; where the processor can, four times sixteen with
# one instruction. Elsewhere the library's function is called.
from cpython.bytes cimport PyBytes_FromStringAndSize

cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <emmintrin.h>
    #include <wmmintrin.h>

    static int contrail_crc_folds(void) {
        static int answer = -1;
        if (answer < 0) answer = __builtin_cpu_supports("pclmul") ? 1 : 0;
        return answer;
    }

    #define CONTRAIL_FOLD(into, by, next) _mm_xor_si128(_mm_xor_si128( \\
        _mm_clmulepi64_si128(into, by, 0x00), _mm_clmulepi64_si128(into, by, 0x11)), next)
    #define CONTRAIL_LOAD(place) _mm_loadu_si128((const __m128i *)(place))

    /* Older headers of GCC have not all of it. */
    #if defined(__clang__) || __GNUC__ >= 10
    #include <immintrin.h>

    static int contrail_crc_folds_wide(void) {
        static int answer = -1;
        if (answer < 0)
            answer = __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f");
        return answer;
    }

    #define CONTRAIL_WIDE(into, by, next) _mm512_ternarylogic_epi64( \\
        _mm512_clmulepi64_epi128(into, by, 0x00), _mm512_clmulepi64_epi128(into, by, 0x11), \\
        next, 0x96)
    #define CONTRAIL_LOAD_WIDE(place) _mm512_loadu_si512((const void *)(place))

    /* The first ``size`` bytes, a multiple of 256 and not 0, as sixteen that stand for them. */
    __attribute__((target("avx512f,vpclmulqdq,pclmul,sse2")))
    static __m128i contrail_crc_fold_wide(
            unsigned int crc, const unsigned char *data, size_t size) {
        const __m512i by_sixteen = _mm512_set4_epi64(
            0x01322d1430, 0x011542778a, 0x01322d1430, 0x011542778a);
        const __m512i by_four = _mm512_set4_epi64(
            0x01c6e41596, 0x0154442bd4, 0x01c6e41596, 0x0154442bd4);
        const __m128i by_one = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
        __m512i a, b, c, d;
        __m128i folded;
        a = _mm512_xor_si512(CONTRAIL_LOAD_WIDE(data),
            _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
        b = CONTRAIL_LOAD_WIDE(data + 64);
        c = CONTRAIL_LOAD_WIDE(data + 128);
        d = CONTRAIL_LOAD_WIDE(data + 192);
        for (data += 256, size -= 256; size; data += 256, size -= 256) {
            a = CONTRAIL_WIDE(a, by_sixteen, CONTRAIL_LOAD_WIDE(data));
            b = CONTRAIL_WIDE(b, by_sixteen, CONTRAIL_LOAD_WIDE(data + 64));
            c = CONTRAIL_WIDE(c, by_sixteen, CONTRAIL_LOAD_WIDE(data + 128));
            d = CONTRAIL_WIDE(d, by_sixteen, CONTRAIL_LOAD_WIDE(data + 192));
        }
        b = CONTRAIL_WIDE(a, by_four, b);
        c = CONTRAIL_WIDE(b, by_four, c);
        d = CONTRAIL_WIDE(c, by_four, d);
        folded = _mm512_castsi512_si128(d);
        folded = CONTRAIL_FOLD(folded, by_one, _mm512_extracti32x4_epi32(d, 1));
        folded = CONTRAIL_FOLD(folded, by_one, _mm512_extracti32x4_epi32(d, 2));
        return CONTRAIL_FOLD(folded, by_one, _mm512_extracti32x4_epi32(d, 3));
    }
    #else
    static int contrail_crc_folds_wide(void) { return 0; }
    static __m128i contrail_crc_fold_wide(
            unsigned int crc, const unsigned char *data, size_t size) {
        (void)crc; (void)data; (void)size;
        return _mm_setzero_si128();
    }
    #endif

    /* Takes and returns the checksum without its two inversions; size is a multiple of 16, not 0. */
    __attribute__((target("pclmul,sse2")))
    static unsigned int contrail_crc_fold(
            unsigned int crc, const unsigned char *data, size_t size) {
        const __m128i by_four = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
        const __m128i by_one = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
        const __m128i by_half = _mm_set_epi64x(0, 0x0163cd6124);
        const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
        const __m128i low_halves = _mm_setr_epi32(~0, 0, ~0, 0);
        __m128i a, b, c, d;
        if (size >= 256 && contrail_crc_folds_wide()) {
            size_t wide = size & ~(size_t)255;
            a = contrail_crc_fold_wide(crc, data, wide);
            data += wide;
            size -= wide;
            goto rest;
        }
        a = _mm_xor_si128(CONTRAIL_LOAD(data), _mm_cvtsi32_si128((int)crc));
        if (size >= 64) {
            b = CONTRAIL_LOAD(data + 16);
            c = CONTRAIL_LOAD(data + 32);
            d = CONTRAIL_LOAD(data + 48);
            for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
                a = CONTRAIL_FOLD(a, by_four, CONTRAIL_LOAD(data));
                b = CONTRAIL_FOLD(b, by_four, CONTRAIL_LOAD(data + 16));
                c = CONTRAIL_FOLD(c, by_four, CONTRAIL_LOAD(data + 32));
                d = CONTRAIL_FOLD(d, by_four, CONTRAIL_LOAD(data + 48));
            }
            a = CONTRAIL_FOLD(a, by_one, b);
            a = CONTRAIL_FOLD(a, by_one, c);
            a = CONTRAIL_FOLD(a, by_one, d);
        } else {
            data += 16;
            size -= 16;
        }
    rest:
        for (; size >= 16; data += 16, size -= 16)
            a = CONTRAIL_FOLD(a, by_one, CONTRAIL_LOAD(data));
        /* 128 bits to 64, to 32, and what is left of those by Barrett's reduction. */
        a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_one, 0x10));
        a = _mm_xor_si128(_mm_srli_si128(a, 4),
            _mm_clmulepi64_si128(_mm_and_si128(a, low_halves), by_half, 0x00));
        b = _mm_clmulepi64_si128(_mm_and_si128(a, low_halves), barrett, 0x10);
        b = _mm_clmulepi64_si128(_mm_and_si128(b, low_halves), barrett, 0x00);
        return (unsigned int)_mm_cvtsi128_si32(_mm_srli_si128(_mm_xor_si128(a, b), 4));
    }
    #else
    static int contrail_crc_folds(void) { return 0; }
    static unsigned int contrail_crc_fold(
            unsigned int crc, const unsigned char *data, size_t size) {
        (void)data; (void)size;
        return crc;
    }
    #endif

    /* Half a byte at a time: for what is left behind the last sixteen, so the table may be small. */
    static unsigned int contrail_crc_rest(
            unsigned int crc, const unsigned char *data, size_t size) {
        static const unsigned int nibbles[16] = {
            0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158,
            0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4,
            0xa00ae278, 0xbdbdf21c};
        for (; size; data++, size--) {
            crc ^= *data;
            crc = crc >> 4 ^ nibbles[crc & 15];
            crc = crc >> 4 ^ nibbles[crc & 15];
        }
        return crc;
    }

    static unsigned int contrail_crc(const unsigned char *data, size_t size) {
        size_t folded = size & ~(size_t)15;
        unsigned int crc = 0xffffffffu;
        if (folded) crc = contrail_crc_fold(crc, data, folded);
        return ~contrail_crc_rest(crc, data + folded, size - folded);
    }
    """
    int contrail_crc_folds() noexcept nogil
    unsigned int contrail_crc(const unsigned char* data, size_t size) noexcept nogil


cdef inline unsigned int crc_of(
    object crc32, const unsigned char* data, Py_ssize_t at, Py_ssize_t end
) except? 0:
    cdef unsigned int crc
    if end <= at:
        return 0
    if contrail_crc_folds():
        if end - at < 65536:
            return contrail_crc(data + at, end - at)
        with nogil:
            crc = contrail_crc(data + at, end - at)
        return crc
    return crc32(PyBytes_FromStringAndSize(<const char*> data + at, end - at))
