# Think in workerd, without miniflare between: `workerd serve --socket-addr http=... --directory-path disk=...`.
using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "think", worker = .think),
    (name = "disk", disk = (writable = true)),
    (name = "internet", network = (allow = ["public", "private", "local"])),
  ],
  sockets = [(name = "http", http = (), service = "think")],
  # "agents" imports cloudflare:email, whose inside is not part of workerd.
  extensions = [(modules = [(
    name = "cloudflare-internal:email",
    internal = true,
    esModule = "export default { EmailMessage: class EmailMessage {} };",
  )])],
);

const think :Workerd.Worker = (
  modules = [(name = "worker.js", esModule = embed "dist/worker.js")],
  compatibilityDate = "2026-04-01",
  compatibilityFlags = ["nodejs_compat"],
  bindings = [
    (name = "Chat", durableObjectNamespace = "Chat"),
    (name = "Words", durableObjectNamespace = "Words"),
    (name = "Seam", durableObjectNamespace = "Seam"),
    (name = "PROVIDER", fromEnvironment = "PROVIDER"),
    (name = "DELTAS", fromEnvironment = "DELTAS"),
    (name = "LIFE", fromEnvironment = "LIFE"),
  ],
  durableObjectNamespaces = [
    (className = "Chat", uniqueKey = "outlast-bench-chat", enableSql = true),
    (className = "Words", uniqueKey = "outlast-bench-words", enableSql = true),
    (className = "Seam", uniqueKey = "outlast-bench-seam", enableSql = true),
  ],
  durableObjectStorage = (localDisk = "disk"),
);
