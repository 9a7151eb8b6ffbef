import { defineConfig } from "vite";

export default defineConfig({
  esbuild: { jsx: "automatic" },
  build: { target: "es2022", chunkSizeWarningLimit: 1000 },
  server: {
    // `npm run dev` serves the page; what is for the agents goes to `uvicorn app:web`, sockets too.
    // The origin is the dev server's, so it has to look like the other one's.
    proxy: { "/agents": { target: "http://127.0.0.1:8000", ws: true, changeOrigin: true, rewriteWsOrigin: true } }
  }
});
