"""Options of every JVM of the Spark tests."""

# None lives long enough to earn back what the second compiler and parallel collection cost: without
# them the tests of batch reads and writes take 52 s of processor time instead of 71 s.
# The first compiler alone keeps 48 MiB of code, which the session that all tests share outgrows:
# the machine then fails at what it has not linked yet.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
