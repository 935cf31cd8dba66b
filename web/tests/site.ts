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

export { expect };
