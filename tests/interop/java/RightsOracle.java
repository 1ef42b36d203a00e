import java.io.BufferedWriter;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import org.apache.rocketmq.auth.authentication.model.User;
import org.apache.rocketmq.auth.authorization.chain.AclAuthorizationHandler;
import org.apache.rocketmq.auth.authorization.context.DefaultAuthorizationContext;
import org.apache.rocketmq.auth.authorization.enums.Decision;
import org.apache.rocketmq.auth.authorization.enums.PolicyType;
import org.apache.rocketmq.auth.authorization.model.Acl;
import org.apache.rocketmq.auth.authorization.model.Environment;
import org.apache.rocketmq.auth.authorization.model.Policy;
import org.apache.rocketmq.auth.authorization.model.PolicyEntry;
import org.apache.rocketmq.auth.authorization.model.Resource;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.common.action.Action;
import org.apache.rocketmq.common.resource.ResourcePattern;
import org.apache.rocketmq.common.resource.ResourceType;

/**
 * Says which right of a user decides on a request, by Apache RocketMQ's own classes.
 *
 * <p>Usage: {@code RightsOracle CASES ANSWERS}. A case is a line of fields between tabs: type, name,
 * actions with commas and source address of the request, and then for each entry its policy,
 * resource, actions, addresses and decision. An answer is {@code NONE}, or the deciding entry's
 * decision and resource.
 */
public class RightsOracle {
    public static void main(String[] arguments) throws Exception {
        Path cases = Paths.get(arguments[0]);
        Constructor<AclAuthorizationHandler> made =
            AclAuthorizationHandler.class.getConstructor(AuthConfig.class);
        AuthConfig config = new AuthConfig();
        config.setAuthorizationMetadataProvider(null);
        AclAuthorizationHandler handler = made.newInstance(config);
        Method match = AclAuthorizationHandler.class.getDeclaredMethod(
            "matchPolicyEntries", DefaultAuthorizationContext.class, Acl.class);
        match.setAccessible(true);
        try (BufferedWriter out = Files.newBufferedWriter(Paths.get(arguments[1]))) {
            for (String line : Files.readAllLines(cases, StandardCharsets.UTF_8)) {
                String[] fields = line.split("\t", -1);
                PolicyEntry entry =
                    (PolicyEntry) match.invoke(handler, context(fields), acl(fields));
                out.write(entry == null
                    ? "NONE"
                    : entry.getDecision().getName() + " " + entry.toResourceStr());
                out.write('\n');
            }
        }
        System.exit(0);
    }

    private static DefaultAuthorizationContext context(String[] fields) {
        Resource resource = Resource.of(
            ResourceType.getByName(fields[0]), fields[1], ResourcePattern.LITERAL);
        return DefaultAuthorizationContext.of(
            User.of("someone"), resource, actions(fields[2]), fields[3]);
    }

    private static Acl acl(String[] fields) {
        List<PolicyEntry> custom = new ArrayList<>();
        List<PolicyEntry> byDefault = new ArrayList<>();
        for (int at = 4; at + 4 < fields.length; at += 5) {
            Environment environment = fields[at + 3].isEmpty()
                ? new Environment()
                : Environment.of(Arrays.asList(fields[at + 3].split(",")));
            PolicyEntry entry = PolicyEntry.of(
                Resource.of(fields[at + 1]),
                actions(fields[at + 2]),
                environment,
                Decision.getByName(fields[at + 4]));
            (PolicyType.getByName(fields[at]) == PolicyType.CUSTOM ? custom : byDefault).add(entry);
        }
        List<Policy> policies = new ArrayList<>();
        policies.add(Policy.of(PolicyType.CUSTOM, custom));
        policies.add(Policy.of(PolicyType.DEFAULT, byDefault));
        return Acl.of(User.of("someone"), policies);
    }

    private static List<Action> actions(String names) {
        List<Action> actions = new ArrayList<>();
        for (String name : names.split(",")) {
            actions.add(Action.getByName(name));
        }
        return actions;
    }
}
