import java.util.LinkedHashMap;
import java.util.Map;

/** The report of a command: numbers by name. */
final class Figures {
    private final Map<String, Number> values = new LinkedHashMap<>();

    Figures put(String name, Number value) {
        values.put(name, value);
        return this;
    }

    String json() {
        StringBuilder text = new StringBuilder("{");
        for (Map.Entry<String, Number> entry : values.entrySet()) {
            text.append(text.length() > 1 ? ", " : "");
            text.append('"').append(entry.getKey()).append("\": ").append(entry.getValue());
        }
        return text.append('}').toString();
    }
}
