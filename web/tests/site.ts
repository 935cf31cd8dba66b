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

/** A small picture of what the guest shows. */
export function pixels(page: Page): Promise<string> {
  return page.locator(".screen canvas").evaluate((canvas: HTMLCanvasElement) => canvas.toDataURL());
}

/** Waits until the screen shows something, and stands still. */
export async function settled(page: Page): Promise<string> {
  let last = "";
  await expect(async () => {
    const now = await pixels(page);
    const same = now === last && now.length > 3000;
    last = now;
    expect(same).toBe(true);
  }).toPass({ intervals: [700] });
  return last;
}

export { expect };
