"""Schedules: methods that are called at a time, once or repeatedly, at least once per occurrence.

* `schedules`: the schedules of one agent, and their execution.
* `timetable`: when a schedule is due; `occurrences`: which occurrence is next. Both pure.
* `sql`: rows and statements, including the alarm, which every change recomputes.
"""
