"""The pytest plugin. pytest loads it by itself wherever outlast is installed."""
