"""The seam: answers that are killed in the middle, and models that continue them in seven ways.

`misbehaviours` makes random answers in many scripts, and what models say when they are asked to continue
one, `models` names seven of these, and `provider` says it as the stream of an OpenAI-compatible server, the
same for all systems. `killed` kills a process with many conversations, of outlast, LangGraph or DBOS
(`worker`), and starts another one; `sockets` does the same with a server (`peers/think`). `judged` compares
what a reader had seen with what is there in the end. `splices` is outlast's splicer
alone, on ten thousand answers. `jobs` lists.
"""
