"""The others, with the settings they ship with, called as their documentation says."""
