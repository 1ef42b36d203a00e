"""Options of every JVM of the Spark tests."""

# None lives long enough to earn back what the second compiler and parallel collection cost: without
# them the tests of batch reads and writes take 52 s of processor time instead of 71 s.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
