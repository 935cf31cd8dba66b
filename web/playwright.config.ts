import { defineConfig } from "@playwright/test";

/** Debian's Chromium; another one by the variable CHROMIUM. As root it has no sandbox to start. */
const executablePath = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
const root = process.getuid?.() === 0;

export default defineConfig({
  testDir: "tests",
  testMatch: "*.spec.ts",
  globalSetup: "./tests/setup.ts",
  // one node, and guests without KVM: tests one after the other
  workers: 1,
  // emulated guests on a busy machine; what needed a second try is named as flaky
  retries: 2,
  timeout: 120_000,
  expect: { timeout: 60_000 },
  // what failed stands at the end of what is printed
  reporter: process.env["PLAYWRIGHT_JSON_OUTPUT_NAME"] ? [["dot"], ["json"]] : "dot",
  forbidOnly: true,
  use: {
    viewport: { width: 1280, height: 800 },
    launchOptions: { executablePath, args: root ? ["--no-sandbox"] : [] },
    screenshot: "only-on-failure",
  },
});
