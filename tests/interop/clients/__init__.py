"""Official RocketMQ clients, each run as its own process against a NameServer and two brokers."""
