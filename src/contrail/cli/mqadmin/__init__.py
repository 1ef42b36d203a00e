"""Apache's ``mqadmin`` commands under their own names and options, without a JVM."""
