"""The seam: answers that are killed in the middle, and models that continue them in seven ways.

`misbehaviours` makes random answers in many scripts, and what models say when they are asked to continue
one; `provider` says it as the stream of an OpenAI-compatible server, the same for all systems. `python`
kills a process with many conversations, of outlast, LangGraph or DBOS (`worker`), and starts another one;
`workerd` does the same with Cloudflare's Think. `judged` compares what a reader had seen with what is there
in the end. `splices` is outlast's splicer alone, on ten thousand answers. `jobs` lists.
"""
