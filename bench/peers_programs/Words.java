import java.util.HashMap;
import java.util.Map;

/** A command's line: its name, then words of the form name=value between tabs. */
final class Words {
    private final String command;
    private final Map<String, String> values = new HashMap<>();

    Words(String line) {
        String[] parts = line.split("\t");
        command = parts[0];
        for (int index = 1; index < parts.length; index++) {
            String[] pair = parts[index].split("=", 2);
            values.put(pair[0], pair[1]);
        }
    }

    String command() {
        return command;
    }

    boolean has(String name) {
        return values.containsKey(name);
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException(command + " needs " + name + "=...");
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        return Integer.parseInt(text(name, Integer.toString(otherwise)));
    }

    double real(String name, double otherwise) {
        return Double.parseDouble(text(name, Double.toString(otherwise)));
    }

    /** A word in seconds, as nanoseconds. */
    long nanos(String name, double otherwiseSeconds) {
        return (long) (real(name, otherwiseSeconds) * 1e9);
    }
}
