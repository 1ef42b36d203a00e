"""Changes of a cluster, each as a plan that a person agrees to and a run with an outcome each."""
