import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;

/** The clocks around what is measured; tells the harness when to read the broker's. */
final class Meter {
    private static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private long wallNanos;
    private long cpuNanos;

    void begin() {
        say("begin");
        wallNanos = System.nanoTime();
        cpuNanos = SYSTEM.getProcessCpuTime();
    }

    void end() {
        wallNanos = System.nanoTime() - wallNanos;
        cpuNanos = SYSTEM.getProcessCpuTime() - cpuNanos;
        say("end");
    }

    /** The figures that every command has; the CPU is this process's. */
    Figures figures(long recordCount) {
        return new Figures()
            .put("record_count", recordCount)
            .put("wall_s", wallSeconds())
            .put("client_cpu_s", cpuNanos / 1e9);
    }

    double wallSeconds() {
        return wallNanos / 1e9;
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
