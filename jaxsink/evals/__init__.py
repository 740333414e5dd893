"""Evaluation on public benchmarks: settings and prompts as data, answer extraction, and a sandbox for programs."""
