"""Schedules: methods that are called at a time, once or again and again, at least once per occurrence.

* `schedules`: those of one agent; `timetable`: when one is due; `occurrences`: which comes next. Both pure.
* `sql`: rows and statements, with the alarm that every change computes anew.
"""
