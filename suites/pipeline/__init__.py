"""Pipeline parallelism: schedules, their bubbles, and the edges between stages."""
