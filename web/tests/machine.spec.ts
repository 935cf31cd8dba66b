/** One guest that speaks on its serial console alone, and all that the page does with a machine. */

import { spawn } from "node:child_process";
import type { Page } from "@playwright/test";
import { bytes } from "../src/format";
import { environment, floe, until } from "./setup";
import { barriers, expect, machines, test, watch } from "./site";

const LONG = "a-machine-with-a-name-as-long-as-may";
const PROMPT = "tiny#";

test.afterEach(({ site }) => {
  for (const machine of machines(site)) floe(site, "rm", machine.name, "--force");
});

test("sizes are written as the command line writes them", () => {
  const sizes = [0, 1023, 1024, 1536, 2 ** 20 - 1, 2 ** 20, 3 * 2 ** 40].map(bytes);
  expect(sizes).toEqual(["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 MiB", "3.0 TiB"]);
});

/** Types a line on the page's console and waits for an answer there. */
async function say(page: Page, line: string, answer: string): Promise<void> {
  await expect(page.locator(".console textarea")).toBeFocused();
  await page.keyboard.type(`${line}\n`, { delay: 10 });
  await expect(page.locator(".xterm-rows")).toContainText(answer);
}

/** Nothing is wider than the window, and nothing that is cut off goes without its whole text somewhere. */
async function fits(page: Page): Promise<void> {
  const found = await page.evaluate(() => {
    const { clientWidth } = document.documentElement;
    const beyond = (one: Element): boolean => one.getBoundingClientRect().right > clientWidth + 0.5;
    const wide = document.documentElement.scrollWidth > clientWidth ? [...document.querySelectorAll("body *")].filter(beyond) : [];
    const scroll = (one: HTMLElement): boolean => one.scrollWidth > one.clientWidth + 1;
    const seen = [...document.querySelectorAll<HTMLElement>("h1, h2, h3, p, dd, .notice, .tag, .dialog, .bar, .facts span")].filter(
      (one) => one.getClientRects().length > 0 && !one.closest(".unseen"),
    );
    const cut = seen.filter((one) => scroll(one) && !one.title && !one.closest("[title]"));
    return [...wide, ...cut].map((one) => one.outerHTML.slice(0, 160));
  });
  expect(found).toEqual([]);
}

test("a guest that speaks on its serial console alone is used there, by several at once, and beside the command line", async ({ page, browser, site, errors }) => {
  test.setTimeout(600_000); // one boot, and everything that is done with a console
  floe(site, "run", "tiny", "--name", LONG, "--rm", "--memory", "256M", "--cmdline", "console=ttyS0 quiet no_timer_check");
  await until("the guest", () => floe(site, "logs", LONG).includes(PROMPT));

  // the console is shown without having been asked for, with what was written before
  await page.addInitScript(() => {
    const made: WebSocket[] = [];
    Object.assign(window, { made });
    window.WebSocket = new Proxy(WebSocket, {
      construct: (target, address: ConstructorParameters<typeof WebSocket>) => {
        const one = new target(...address);
        made.push(one);
        return one;
      },
    });
  });
  await page.reload();
  await page.getByRole("button", { name: `Details of ${LONG}`, exact: true }).click();
  await expect(page.locator(".drawer")).toContainText("it is removed with its disks");
  await expect(page.locator(".drawer")).not.toContainText("Starts again");
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: `Show the screen of ${LONG}` }).click();
  await expect(page.getByRole("button", { name: "Console", exact: true })).toHaveAttribute("aria-pressed", "true");
  await expect(page.locator(".xterm-rows")).toContainText(PROMPT);
  await expect(page.locator(".bar-title")).toContainText("Live");
  await say(page, "echo con-$((20+22))", "con-42");

  // what a guest writes is text and nothing else
  const hostile = String.raw`printf '\033]0;mine\007\033]52;c;aGk=\007\033]8;;http://127.0.0.1:9/\033\\link\033]8;;\033\\ <img src=x id=evil> \033[31mred\033[38;2;9;9;9m dim\033[0m\n'`;
  await say(page, hostile, "<img src=x id=evil> red dim");
  expect(await page.title()).toBe(`${LONG} - floe`);
  await expect(page.locator("#evil, .xterm a")).toHaveCount(0);
  expect(await barriers(page)).toEqual([]);

  // another browser sees the same and types, too; a lost connection is made again, without what is there being shown twice
  const context = await browser.newContext();
  const other = await context.newPage();
  watch(other, errors);
  await other.goto(`${site.login}`);
  await other.goto(`${site.page}#/machine/${LONG}`);
  await expect(other.locator(".xterm-rows")).toContainText("con-42");
  await say(other, "echo both-$((1+1))", "both-2");
  await expect(page.locator(".xterm-rows")).toContainText("both-2");
  const consoles = (end: boolean): Promise<number> =>
    page.evaluate((end) => {
      const { made } = window as unknown as { made: WebSocket[] };
      const consoles = made.filter((one) => one.url.endsWith("/terminal"));
      if (end) consoles.at(-1)?.close();
      return consoles.filter((one) => one.readyState === WebSocket.OPEN).length * 100 + consoles.length;
    }, end);
  expect(await consoles(true)).toBe(1);
  await expect.poll(() => consoles(false)).toBe(102);
  await expect(page.locator(".xterm-rows")).toContainText("both-2");
  const shown = await page.locator(".xterm-rows").innerText();
  expect(shown.split("con-42").length).toBe(2);

  // a narrower window has fewer columns, and a guest can be told so
  await page.setViewportSize({ width: 700, height: 640 });
  await expect(page.locator(".console textarea")).toBeFocused();
  await page.getByRole("button", { name: "Tell size" }).click();
  await expect(page.locator(".xterm-rows")).toContainText(/stty rows \d+ cols [4-9]\d/);
  await page.setViewportSize({ width: 1280, height: 800 });

  // Esc is the guest's here, Shift + Esc leaves; then the keys of the page, and the arrows from button to button
  await page.locator(".console").click();
  await page.keyboard.press("Escape");
  await expect(page.locator(".console textarea")).toBeFocused();
  await page.keyboard.press("Shift+Escape");
  await expect(page.getByRole("button", { name: "Back" })).toBeFocused();
  await page.keyboard.press("ArrowRight");
  await expect(page.getByRole("button", { name: "Screen", exact: true })).toBeFocused();
  await page.keyboard.press("s");
  await expect(page.locator(".screen canvas")).toBeVisible();
  await expect(page.locator(".bar-title")).toContainText("Live");

  // while `floe console` has the line nobody else types, and is told so
  await context.close();
  const shell = spawn(site.floe, ["console", LONG], { env: environment(site.home), stdio: ["pipe", "ignore", "ignore"] });
  const ended = new Promise((resolve) => shell.once("exit", resolve));
  shell.stdin.write("echo cli-$((1+2))\n");
  await until("floe console", () => floe(site, "logs", LONG).includes("cli-3"));
  await page.getByRole("button", { name: "Console", exact: true }).click();
  await expect(page.locator(".xterm-rows")).toContainText("cli-3");
  await expect(page.locator(".console textarea")).toBeFocused();
  await page.keyboard.type("x");
  await expect(page.getByText("Another program has this console’s line")).toBeVisible();
  shell.kill();
  await ended;
  await expect(async () => {
    await page.keyboard.type("\n");
    await expect(page.getByText("Another program has this console’s line")).toHaveCount(0, { timeout: 2000 });
  }).toPass();
  await say(page, "echo mine-$((2+2))", "mine-4");
});

test("a machine is found, paused, looked into, forked and stopped, by keys as by the mouse, and long names fit everywhere", async ({ page, site }) => {
  test.setTimeout(600_000); // four machines
  floe(site, "run", "tiny-live:shell", "--name", LONG, "-p", "0:80", "--restart", "on-failure:3");
  floe(site, "image", "tag", "tiny-live:shell", `${LONG}:with-a-tag-that-is-not-short-either-but-says-much`);
  try {
    // found: the search filters machines, too, and arrow keys go from machines to images
    await page.keyboard.press("/");
    await page.keyboard.type("name-as-long");
    await expect(page.locator(".machine")).toHaveCount(1);
    await page.getByRole("searchbox").fill("kind=test");
    await expect(page.locator(".machine")).toHaveCount(0);
    await expect(page.getByText("No machine matches")).toBeVisible();
    await page.getByRole("searchbox").fill("");
    await page.keyboard.press("Escape");
    await page.keyboard.press("ArrowRight");
    await expect(page.locator(".machine .card-open")).toBeFocused();
    await page.keyboard.press("ArrowDown");
    await expect(page.locator("[data-image] .card-open").first()).toBeFocused();
    await page.keyboard.press("ArrowUp");
    await expect(page.locator(".machine .card-open")).toBeFocused();

    // looked into, with i; Esc gives the focus back
    await page.keyboard.press("i");
    const drawer = page.locator(".drawer");
    await expect(drawer).toContainText("127.0.0.1:");
    await expect(drawer).toContainText("guest 80");
    await expect(drawer).toContainText("that differ from the image");
    await expect(drawer).toContainText("when it fails, at most 3 times in a row");
    await expect(drawer).not.toContainText("it is removed");
    expect(await barriers(page)).toEqual([]);
    await drawer.getByRole("button", { name: /^tiny-live:shell/ }).click();
    const image = JSON.parse(floe(site, "image", "inspect", "tiny-live:shell", "--json")) as { stored_bytes: number; shared_bytes: number };
    const own = bytes(image.stored_bytes - image.shared_bytes);
    await expect(drawer).toContainText(bytes(image.stored_bytes));
    await expect(drawer).toContainText(`${own}: removing the image frees these`);
    expect(floe(site, "image", "inspect", "tiny-live:shell")).toContain(`${own} of this node's disk, which go with it`);
    await expect(drawer.getByRole("row", { name: /^ram / })).toContainText("256.0 MiB");
    await expect(drawer.getByRole("listitem").filter({ hasText: "this image" })).toHaveCount(1);
    await expect(drawer).toContainText("profile 2");
    expect(await barriers(page)).toEqual([]);
    await page.keyboard.press("Escape");
    await expect(page.locator(".machine .card-open")).toBeFocused();

    // narrow and wide, everything fits
    for (const width of [360, 1280]) {
      await page.setViewportSize({ width, height: 740 });
      await fits(page);
      for (const name of [`Details of ${LONG}`, `Stop ${LONG}`, `Remove ${LONG}`]) {
        await page.getByRole("button", { name, exact: true }).click();
        await expect(page.getByRole("dialog")).toBeVisible();
        await fits(page);
        await page.keyboard.press("Escape");
        await expect(page.getByRole("dialog")).toHaveCount(0);
        await expect(page.getByRole("button", { name, exact: true })).toBeFocused();
      }
      await page.goto(`${site.page}#/machine/${LONG}`);
      await expect(page.locator(".bar-title")).toContainText("Live");
      await fits(page);
      await page.keyboard.press("Escape");
      await page.keyboard.press("Escape");
      await expect(page.getByRole("heading", { name: "Machines" })).toBeVisible();
    }

    // paused instead of stopped, and resumed
    await page.getByRole("button", { name: `Stop ${LONG}` }).click();
    await page.getByRole("button", { name: "Pause instead" }).click();
    await expect(page.locator(".status.paused")).toBeVisible();
    expect(machines(site)).toMatchObject([{ status: "paused" }]);
    await page.getByRole("button", { name: `Resume ${LONG}` }).click();
    await expect(page.locator(".status.running")).toBeVisible();

    // n, 3, Enter are three clones, however fast they are typed
    await page.getByRole("button", { name: `Show the screen of ${LONG}` }).click();
    await expect(page.locator(".bar-title")).toContainText("Live");
    await page.keyboard.press("Escape");
    await page.keyboard.press("n");
    await page.keyboard.press("3");
    await page.keyboard.press("Enter");
    await expect(page.getByText(`${LONG} stood still`)).toBeVisible();
    expect(machines(site)).toHaveLength(4);
    await page.keyboard.press("p");
    await expect(page.locator(".bar-title")).toContainText("Paused");
    await page.keyboard.press("p");
    await expect(page.locator(".bar-title")).toContainText("Live");
    // the letter that opens a dialog is not the first that is typed in it
    await page.keyboard.press("c");
    await expect(page.getByLabel("Name of the image")).toHaveValue(/^tiny-live:a-machine/);
  } finally {
    floe(site, "image", "untag", `${LONG}:with-a-tag-that-is-not-short-either-but-says-much`);
  }
});

test("what an import refuses stands in its dialog, in front, until it is tried again", async ({ page }) => {
  await page.getByRole("button", { name: "Add", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "Add an image" });
  const program = Buffer.concat([Buffer.from("\x7fELF\x02\x01\x01"), Buffer.alloc(8192, 1)]);
  await page.getByLabel("Disk (qcow2, raw, vmdk, vdi)").setInputFiles({ name: `${"long".repeat(30)}.raw`, mimeType: "application/octet-stream", buffer: program });
  await dialog.getByRole("button", { name: "Import" }).click();
  const problem = dialog.getByRole("alert").filter({ hasText: /program|ELF/ });
  await expect(problem).toBeVisible();
  const inFront = await problem.evaluate((element) => {
    const box = element.getBoundingClientRect();
    return element.contains(document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2));
  });
  expect(inFront).toBe(true);
  await page.setViewportSize({ width: 360, height: 740 });
  await fits(page);
  expect(await barriers(page)).toEqual([]);
});
