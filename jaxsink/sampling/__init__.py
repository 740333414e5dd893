"""Samplers: token choice, schedules, one compiled loop for diffusion models and one for autoregressive ones."""
