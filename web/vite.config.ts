/** Builds the page into the Python package, from where the HTTP server serves it. */

import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

const here = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

export default defineConfig({
  base: "./",
  resolve: {
    alias: {
      "@cutaway/client": here("../clients/typescript/src/index.ts"),
      "@cutaway/contract": here("../clients/typescript/src/gen/cutaway/v1"),
    },
    dedupe: ["@bufbuild/protobuf", "@connectrpc/connect", "@connectrpc/connect-web"],
  },
  build: {
    outDir: here("../service/cutaway/server/web/static"),
    emptyOutDir: true,
    assetsInlineLimit: 0,
    target: "es2022",
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  test: { setupFiles: here("setup-tests.ts") },
  server: { fs: { allow: [here("..")] } },
});
