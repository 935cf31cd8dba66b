import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

/** Each file once more as gzip: the binary that embeds the page has nothing to compress while it serves. */
function packed(): Plugin {
  let out = "";
  const visit = (folder: string): void => {
    for (const entry of readdirSync(folder, { withFileTypes: true })) {
      const path = join(folder, entry.name);
      if (entry.isDirectory()) visit(path);
      else if (!path.endsWith(".gz")) writeFileSync(`${path}.gz`, gzipSync(readFileSync(path), { level: 9 }));
    }
  };
  return {
    name: "packed",
    apply: "build",
    configResolved: (config) => {
      out = config.build.outDir;
    },
    closeBundle: () => visit(out),
  };
}

/** The licences of what is bundled, as they ask for. */
function licences(packages: readonly string[]): Plugin {
  return {
    name: "licences",
    apply: "build",
    generateBundle() {
      const texts = packages.map((name) => {
        const folder = join("node_modules", name);
        const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as {
          version: string;
          license: string;
        };
        const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
        const text = file ? readFileSync(join(folder, file), "utf8").trim() : "";
        const source = `Unmodified; source: the npm package ${name}, version ${about.version}.`;
        return `${name} ${about.version} (${about.license})\n${source}\n\n${text}\n`;
      });
      const rule = `\n${"-".repeat(80)}\n\n`;
      this.emitFile({ type: "asset", fileName: "licences.txt", source: texts.join(rule) });
    },
  };
}

export default defineConfig({
  plugins: [licences(["preact", "@novnc/novnc", "@xterm/xterm", "@xterm/addon-fit"]), packed()],
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    // noVNC waits for the browser's codecs at its top level
    target: "es2022",
    // a picture inside of the style sheet would be a data: address
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 400,
    rollupOptions: { input: { node: "index.html", hub: "hub.html" } },
  },
  server: {
    // `npm run dev` beside a running node, whose token FLOE_WEB_TOKEN has
    proxy: {
      "/v1": {
        target: "http://127.0.0.1:7070",
        ws: true,
        changeOrigin: true,
        headers: {
          authorization: `Bearer ${process.env["FLOE_WEB_TOKEN"] ?? ""}`,
          origin: "http://127.0.0.1:7070",
        },
      },
    },
  },
});
