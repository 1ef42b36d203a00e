import java.io.BufferedWriter;
import java.io.IOException;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Map;

import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.common.ConfigManager;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Carries config files across: each is loaded by the class of Apache RocketMQ's broker that owns
 * it, every field of that object is written down, and the object is persisted elsewhere.
 *
 * <p>Usage: {@code ConfigCarrier FROM TO}, both folders. {@code TO} receives the files as Apache
 * writes them and {@code fields.tsv}: the file's name, the fields and keys that lead to a value,
 * and the value, separated by tabs.
 */
public class ConfigCarrier {
    private static final int PATH_LENGTH_MAX = 12;
    private static final String[] DELAY_OFFSETS = {
        "org.apache.rocketmq.broker.schedule.DelayOffsetSerializeWrapper",
        "org.apache.rocketmq.store.schedule.DelayOffsetSerializeWrapper"};

    private static Path folder;

    private final Path from;
    private final Path to;
    private final BufferedWriter report;

    private ConfigCarrier(Path from, Path to, BufferedWriter report) {
        this.from = from;
        this.to = to;
        this.report = report;
    }

    public static void main(String[] arguments) throws Exception {
        Path to = Paths.get(arguments[1]);
        Path fields = to.resolve("fields.tsv");
        try (BufferedWriter report = Files.newBufferedWriter(fields, StandardCharsets.UTF_8)) {
            new ConfigCarrier(Paths.get(arguments[0]), to, report).run();
        } catch (Throwable problem) {
            problem.printStackTrace();
            Runtime.getRuntime().halt(3);
        }
        System.exit(0);
    }

    private void run() throws Exception {
        carry(new Topics());
        carry(new Groups());
        carry(new ConsumerOffsets());
        carry(new ConsumerFilters());
        carryDelayOffsets();
    }

    private void carry(ConfigManager owner) throws Exception {
        folder = from;
        String name = Paths.get(owner.configFilePath()).getFileName().toString();
        if (!owner.load() || !Files.exists(from.resolve(name))) {
            throw new IllegalStateException("Apache refused " + name);
        }
        describe(owner, name);
        folder = to;
        owner.persist();
    }

    /** Their owner runs inside a whole broker, so this does what its load and persist do. */
    private void carryDelayOffsets() throws Exception {
        String name = "delayOffset.json";
        String text = MixAll.file2String(from.resolve(name).toString());
        Object loaded = RemotingSerializable.fromJson(text, firstPresent(DELAY_OFFSETS));
        describe(loaded, name);
        MixAll.string2File(((RemotingSerializable) loaded).toJson(true), to.resolve(name).toString());
    }

    private static Class<?> firstPresent(String[] names) throws ClassNotFoundException {
        for (String name : names) {
            try {
                return Class.forName(name);
            } catch (ClassNotFoundException absent) {
                continue;
            }
        }
        throw new ClassNotFoundException(String.join(" or ", names));
    }

    // Apache's own classes, told where their file is.

    public static class Topics extends TopicConfigManager {
        @Override
        public String configFilePath() {
            return folder.resolve("topics.json").toString();
        }
    }

    public static class Groups extends SubscriptionGroupManager {
        @Override
        public String configFilePath() {
            return folder.resolve("subscriptionGroup.json").toString();
        }
    }

    public static class ConsumerOffsets extends ConsumerOffsetManager {
        @Override
        public String configFilePath() {
            return folder.resolve("consumerOffset.json").toString();
        }
    }

    public static class ConsumerFilters extends ConsumerFilterManager {
        @Override
        public String configFilePath() {
            return folder.resolve("consumerFilter.json").toString();
        }
    }

    // Describing: by the fields of the objects, so that no serialiser has a say in it.

    private void describe(Object value, String name) throws Exception {
        List<String> path = new ArrayList<>();
        path.add(name);
        describe(value, path);
    }

    private void describe(Object value, List<String> path) throws Exception {
        if (path.size() > PATH_LENGTH_MAX) {
            throw new IllegalStateException("too deep: " + path);
        }
        if (value instanceof Map) {
            describeMap((Map<?, ?>) value, path);
        } else if (value instanceof Collection) {
            Object[] items = ((Collection<?>) value).toArray();
            // The only collections here are sets, whose own order says nothing.
            Arrays.sort(items, Comparator.comparing(String::valueOf));
            describeItems(items, path);
        } else if (value != null && value.getClass().isArray()) {
            describeItems(value, path);
        } else if (isObject(value)) {
            describeFields(value, path);
        } else {
            line(path, String.valueOf(value));
        }
    }

    private void describeMap(Map<?, ?> map, List<String> path) throws Exception {
        if (map.isEmpty()) {
            line(path, "{}");
        }
        for (Map.Entry<?, ?> entry : map.entrySet()) {
            describeBelow(entry.getValue(), path, String.valueOf(entry.getKey()));
        }
    }

    private void describeItems(Object items, List<String> path) throws Exception {
        if (Array.getLength(items) == 0) {
            line(path, "[]");
        }
        for (int i = 0; i < Array.getLength(items); i++) {
            describeBelow(Array.get(items, i), path, String.valueOf(i));
        }
    }

    private void describeFields(Object value, List<String> path) throws Exception {
        Class<?> type = value.getClass();
        for (; type != Object.class; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers())
                    && !Modifier.isTransient(field.getModifiers())) {
                    field.setAccessible(true);
                    describeBelow(field.get(value), path, field.getName());
                }
            }
        }
    }

    private void describeBelow(Object value, List<String> path, String step) throws Exception {
        path.add(step);
        describe(value, path);
        path.remove(path.size() - 1);
    }

    private static boolean isObject(Object value) {
        return value != null && !(value instanceof Enum)
            && (value instanceof ConfigManager
                || value.getClass().getName().startsWith("org.apache.rocketmq."));
    }

    private void line(List<String> path, String value) throws IOException {
        StringBuilder line = new StringBuilder();
        for (String step : path) {
            line.append(escape(step)).append('\t');
        }
        report.write(line.append(escape(value)).append('\n').toString());
    }

    private static String escape(String text) {
        return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
            .replace("\r", "\\r");
    }
}
