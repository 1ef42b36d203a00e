"""What our client does, shown on our own cluster and on Apache's of both generations."""
