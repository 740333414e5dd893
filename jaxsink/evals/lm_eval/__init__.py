"""jaxsink as a model of lm-evaluation-harness."""
