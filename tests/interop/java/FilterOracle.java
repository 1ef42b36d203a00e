import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.rocketmq.filter.SqlFilter;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;

/**
 * Says what Apache RocketMQ's own SQL92 filter makes of expressions.
 *
 * <p>Usage: {@code FilterOracle PROPERTIES EXPRESSIONS ANSWERS}, all files of ASCII lines in which
 * a backslash and everything beyond printable ASCII is written as a backslash, u and four hex
 * digits of a UTF-16 unit, and fields are separated by tabs.
 *
 * <table>
 * <tr><td>PROPERTIES</td><td>one message a line: names and values in turn</td></tr>
 * <tr><td>EXPRESSIONS</td><td>one expression a line, and the numbers of the messages, counted
 * from 0, that it is asked about</td></tr>
 * <tr><td>ANSWERS</td><td>one line for each expression: {@code OK} and a letter for each message
 * (T, F, N for null, E for an exception), or {@code ERROR} and the remark</td></tr>
 * </table>
 */
public class FilterOracle {
    private final List<Map<String, String>> messages = new ArrayList<>();
    private final SqlFilter filter = new SqlFilter();

    public static void main(String[] arguments) throws Exception {
        try {
            new FilterOracle().run(
                Paths.get(arguments[0]), Paths.get(arguments[1]), Paths.get(arguments[2]));
        } catch (Throwable problem) {
            problem.printStackTrace();
            Runtime.getRuntime().halt(3);
        }
        System.exit(0);
    }

    private void run(Path properties, Path expressions, Path answers) throws IOException {
        for (String line : Files.readAllLines(properties, StandardCharsets.US_ASCII)) {
            messages.add(message(line));
        }
        try (BufferedWriter out = Files.newBufferedWriter(answers, StandardCharsets.US_ASCII)) {
            for (String line : Files.readAllLines(expressions, StandardCharsets.US_ASCII)) {
                String[] fields = line.split("\t", -1);
                out.write(answer(decoded(fields[0]), fields));
                out.write('\n');
            }
        }
    }

    private static Map<String, String> message(String line) {
        Map<String, String> properties = new HashMap<>();
        String[] fields = line.isEmpty() ? new String[0] : line.split("\t", -1);
        for (int i = 0; i < fields.length; i += 2) {
            properties.put(decoded(fields[i]), decoded(fields[i + 1]));
        }
        return properties;
    }

    private String answer(String text, String[] fields) {
        Expression expression;
        try {
            expression = filter.compile(text);
        } catch (MQFilterException problem) {
            return "ERROR\t" + encoded(String.valueOf(problem.getMessage()));
        }
        StringBuilder letters = new StringBuilder("OK\t");
        for (int i = 1; i < fields.length; i++) {
            letters.append(evaluated(expression, messages.get(Integer.parseInt(fields[i]))));
        }
        return letters.toString();
    }

    private static char evaluated(Expression expression, Map<String, String> properties) {
        Object result;
        try {
            result = expression.evaluate(new Properties(properties));
        } catch (Throwable problem) {
            return 'E';
        }
        if (result == null) {
            return 'N';
        }
        return Boolean.TRUE.equals(result) ? 'T' : Boolean.FALSE.equals(result) ? 'F' : '?';
    }

    private static String decoded(String field) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < field.length(); i++) {
            if (field.charAt(i) == '\\') {
                text.append((char) Integer.parseInt(field.substring(i + 2, i + 6), 16));
                i += 5;
            } else {
                text.append(field.charAt(i));
            }
        }
        return text.toString();
    }

    private static String encoded(String text) {
        StringBuilder field = new StringBuilder();
        for (char unit : text.toCharArray()) {
            if (unit < ' ' || unit > '~' || unit == '\\') {
                field.append(String.format("\\u%04x", (int) unit));
            } else {
                field.append(unit);
            }
        }
        return field.toString();
    }

    /** One message's properties, as the broker hands them to the filter. */
    private static final class Properties implements EvaluationContext {
        private final Map<String, String> properties;

        Properties(Map<String, String> properties) {
            this.properties = properties;
        }

        @Override
        public Object get(String name) {
            return properties.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return new HashMap<>(properties);
        }
    }
}
