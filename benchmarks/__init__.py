"""outlast beside its peers and beside the floor, measured in one run.

`python -m benchmarks` (better: `script/bench`, which installs what is needed first) plans jobs,
runs each in a fresh process, and prints tables and bars. A *job* is one workload on one system; a
*floor* is the least that must be done for the same durability, written by hand.

Start reading at `catalogue` (what is run), then `job` (one process), `floors` and `ours` (two
answers to the same task; `chat_floors` and `ours_chat` for streamed answers), `wire/` (the same over
WebSockets), `recovery/` (servers that are killed), `peers/` (the others).
`runner` drives, `report` prints, `bars` judges.

Modules import only the standard library at the top: planning works before anything is installed.
"""
