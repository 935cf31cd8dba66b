/**
 * How soon the catalogue is there: opens the page in a fresh browser profile several times and prints one JSON value.
 *
 *   node tests/paint.mjs LOGIN_ADDRESS IMAGES RUNS
 *
 * `painted_ms`: from the navigation's start until all cards stand in the document and a frame with them was drawn.
 * `first_ms`: until anything was painted at all. `plain_ms`: the same for a text file of the same server.
 * `page_bytes`: what came over the wire for the page's own files, compressed; pictures and answers not counted.
 */
import { chromium } from "@playwright/test";

const [login, images, runs] = process.argv.slice(2);
if (!login || !images || !runs) throw new Error("usage: paint.mjs LOGIN_ADDRESS IMAGES RUNS");
const page = new URL("/", login).href;

/** Runs in the page, before its own scripts. */
function observe(count) {
  const look = () => {
    if (document.querySelectorAll(".card:not(.ghost)").length < count) return requestAnimationFrame(look);
    requestAnimationFrame(() =>
      requestAnimationFrame(() => {
        window.paintedMs = performance.now();
      }),
    );
  };
  requestAnimationFrame(look);
}

const firstPaint = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null;

const args = process.getuid?.() === 0 ? ["--no-sandbox"] : [];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args });
const found = { painted_ms: [], first_ms: [], plain_ms: [], page_bytes: 0 };
// one more than asked for: the first one also starts the browser's own processes
for (let run = 0; run <= Number(runs); run += 1) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  await context.request.get(login);
  const tab = await context.newPage();
  await tab.goto(`${page}licences.txt`);
  await tab.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length > 0);
  const plain = await tab.evaluate(firstPaint);
  await tab.goto("about:blank");
  const wire = await context.newCDPSession(tab);
  await wire.send("Network.enable");
  const kinds = new Map();
  let bytes = 0;
  wire.on("Network.responseReceived", (event) => kinds.set(event.requestId, event.response.url));
  wire.on("Network.loadingFinished", (event) => {
    const path = new URL(kinds.get(event.requestId) ?? page).pathname;
    if (!path.startsWith("/v1/")) bytes += event.encodedDataLength;
  });
  await tab.addInitScript(observe, Number(images));
  await tab.goto(page);
  await tab.waitForFunction(() => window.paintedMs !== undefined);
  if (run > 0) {
    found.painted_ms.push(await tab.evaluate(() => window.paintedMs));
    found.first_ms.push(await tab.evaluate(firstPaint));
    found.plain_ms.push(plain);
    found.page_bytes = bytes;
  }
  await context.close();
}
await browser.close();
console.log(JSON.stringify(found));
