import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/**
 * Load by Apache's Java client. One long-lived process, so that the measured code is compiled.
 *
 * <p>Reads commands, each a line of words between tabs, and answers each with the lines "begin" and
 * "end" around the measured part, then its figures as JSON; or with "error" and the cause.
 */
public final class Load {
    public static void main(String[] arguments) throws Exception {
        var input = new InputStreamReader(System.in, StandardCharsets.UTF_8);
        var lines = new BufferedReader(input);
        Meter.say("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Meter.say(answer(arguments[0], new Words(line)));
        }
        // The client's threads would keep the process alive.
        Runtime.getRuntime().halt(0);
    }

    private static String answer(String namesrv, Words words) {
        try {
            return run(namesrv, words).json();
        } catch (Exception problem) {
            problem.printStackTrace();
            return "error\t" + problem.toString().replaceAll("\\s+", " ");
        }
    }

    private static Figures run(String namesrv, Words words) throws Exception {
        switch (words.command()) {
            case "send":
                return new Sending(namesrv, words).run();
            case "consume":
                return new Consuming(namesrv, words).run();
            case "latency":
                return new Pacing(namesrv, words).run();
            default:
                throw new IllegalArgumentException(
                    "no command " + words.command() + ": send, consume or latency");
        }
    }

    private Load() {
    }
}
