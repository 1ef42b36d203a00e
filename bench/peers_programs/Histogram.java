import java.util.concurrent.atomic.AtomicLongArray;

/** Durations counted in buckets, each at most a 64th wider than what it holds. */
final class Histogram {
    private static final int STEPS = 64;
    private static final int STEP_BITS = 6;

    private final AtomicLongArray counts = new AtomicLongArray(STEPS * 60);

    void record(long nanos) {
        counts.incrementAndGet(bucket(Math.max(0, nanos)));
    }

    void clear() {
        for (int index = 0; index < counts.length(); index++) {
            counts.set(index, 0);
        }
    }

    void report(Figures figures) {
        long total = 0;
        for (int index = 0; index < counts.length(); index++) {
            total += counts.get(index);
        }
        figures.put("latency_count", total)
            .put("p50_ms", atShare(total, 0.5))
            .put("p90_ms", atShare(total, 0.9))
            .put("p99_ms", atShare(total, 0.99))
            .put("p999_ms", atShare(total, 0.999))
            .put("max_ms", atShare(total, 1.0));
    }

    private double atShare(long total, double share) {
        long wanted = (long) Math.ceil(total * share);
        long seen = 0;
        for (int index = 0; index < counts.length(); index++) {
            seen += counts.get(index);
            if (seen >= wanted && seen > 0) {
                return upperEnd(index) / 1e6;
            }
        }
        return 0.0;
    }

    /** Small values have buckets of their own, others share one with those of the same first bits. */
    private static int bucket(long value) {
        if (value < STEPS) {
            return (int) value;
        }
        int shift = 63 - Long.numberOfLeadingZeros(value) - STEP_BITS;
        return (shift + 1) * STEPS + (int) (value >>> shift) - STEPS;
    }

    private static long upperEnd(int bucket) {
        if (bucket < STEPS) {
            return bucket;
        }
        int shift = bucket / STEPS - 1;
        return ((long) (bucket % STEPS + STEPS + 1) << shift) - 1;
    }
}
