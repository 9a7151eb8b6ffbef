"""For tests: virtual time, deaths at every commit, real processes that are really killed."""
