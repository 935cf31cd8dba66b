import { readFileSync } from "node:fs";
import { createConnection, createServer, type AddressInfo, type Socket } from "node:net";
import { test as base, expect, type Page } from "@playwright/test";
import { floe, SITE, type Site } from "./setup";

/** A logged-in page, and a promise: no test leaves an error of the page or a breach of its security policy behind. */
export const test = base.extend<{ site: Site; errors: string[]; page: Page }>({
  site: async ({}, use) => {
    await use(JSON.parse(process.env[SITE] ?? "null") as Site);
  },
  errors: async ({}, use) => {
    const errors: string[] = [];
    await use(errors);
    expect(errors).toEqual([]);
  },
  page: async ({ page, site, errors }, use) => {
    watch(page, errors);
    await page.goto(site.login);
    await use(page);
  },
});

export function watch(page: Page, errors: string[]): void {
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (message) => {
    if (message.text().includes("Content Security Policy")) errors.push(message.text());
  });
}

/** The machines of the node. */
export function machines(site: Site): { name: string; status: string }[] {
  return (JSON.parse(floe(site, "ps", "--json")) as { machines: { name: string; status: string }[] }).machines;
}

/** Pixels that are lit on the guest's screen. */
export function ink(page: Page): Promise<number> {
  return page.locator(".screen canvas").evaluate((canvas: HTMLCanvasElement) => {
    const data = canvas.getContext("2d")?.getImageData(0, 0, canvas.width, canvas.height).data ?? [];
    let lit = 0;
    for (let at = 0; at < data.length; at += 4) if ((data[at] ?? 0) + (data[at + 1] ?? 0) + (data[at + 2] ?? 0) > 96) lit += 1;
    return lit;
  });
}

/** More than a blinking cursor, less than a typed word. */
export const WORD = 250;

/** Waits until the screen shows text, and nothing but its cursor changes. */
export async function settled(page: Page): Promise<number> {
  let last = 0;
  await expect(async () => {
    const now = await ink(page);
    const same = Math.abs(now - last) < 40;
    last = now;
    expect(now > WORD && same).toBe(true);
  }).toPass({ intervals: [700] });
  return last;
}

/** Waits until much more is on the screen than before. */
export async function written(page: Page, before: number): Promise<void> {
  await expect(async () => expect(await ink(page)).toBeGreaterThan(before + WORD)).toPass();
}

/** Bytes per second of a slow link, and how late they are. */
const SLOW_BYTES_S = 60_000;
const SLOW_DELAY_MS = 60;
const PIECE_BYTES = 4096;

/** A port that leads to a hub over a link that is slow, for all of its connections together, until it is widened. */
export async function slowLink(to: URL): Promise<{ url: string; widen: () => void; close: () => void }> {
  let rate = SLOW_BYTES_S;
  let free = Date.now();
  const sockets = new Set<Socket>();
  const late = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
  const copy = async (from: Socket, into: Socket, slow: boolean): Promise<void> => {
    try {
      for await (const data of from as AsyncIterable<Buffer>)
        for (let at = 0; at < data.length; at += PIECE_BYTES) {
          const piece = data.subarray(at, at + PIECE_BYTES);
          if (slow) free = Math.max(free, Date.now()) + (1000 * piece.length) / rate;
          await late(slow ? free - Date.now() + SLOW_DELAY_MS : SLOW_DELAY_MS);
          into.write(piece);
        }
    } catch {
      // one of the two has gone
    }
    into.end();
  };
  const server = createServer((near) => {
    const far = createConnection(Number(to.port), to.hostname);
    for (const socket of [near, far]) sockets.add(socket.setNoDelay(true).on("error", () => undefined));
    void copy(near, far, false);
    void copy(far, near, true);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    widen: () => (rate = Number.POSITIVE_INFINITY),
    close: () => {
      server.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}

const axe = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

/** What a screen reader's user would stumble over; the rules of WCAG 2.1 AA. */
export async function barriers(page: Page): Promise<string[]> {
  // colours on their way from light to dark have the contrast of neither
  await page.evaluate(async () => {
    const ends = (one: Animation): boolean => one.effect?.getComputedTiming().endTime !== Number.POSITIVE_INFINITY;
    await Promise.allSettled(document.getAnimations().filter(ends).map((one) => one.finished));
  });
  // the page's own policy lets no script in; the browser's debugger may
  await page.evaluate(axe);
  return page.evaluate(async () => {
    const tags = { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] };
    const { axe } = window as unknown as {
      axe: { run: (options: unknown) => Promise<{ violations: { id: string; nodes: { html: string }[] }[] }> };
    };
    const found = await axe.run(tags);
    return found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`);
  });
}

export { expect };
