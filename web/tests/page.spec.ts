import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import type { Page } from "@playwright/test";
import { floe, hubToken, onConsole, start, until } from "./setup";
import { barriers, expect, machines, settled, slowLink, test, watch, WORD, written } from "./site";

/** Starts the captured guest by a click and waits for its screen. */
async function launch(page: Page): Promise<string> {
  await page.getByRole("button", { name: "Start tiny-live:shell" }).click();
  await expect(page.locator(".bar-title")).toContainText("Live");
  return page.locator("#screen-title").innerText();
}

test.afterEach(({ site }) => {
  for (const machine of machines(site)) floe(site, "rm", machine.name, "--force");
});

test("a click on a picture shows the guest where it was, and it answers a key", { tag: "@core" }, async ({ page }) => {
  const picture = page.getByRole("button", { name: "Start tiny-live:shell" }).locator("img");
  await expect(picture).toBeVisible();
  await expect(picture).toHaveJSProperty("naturalWidth", 640);
  await launch(page);
  const before = await settled(page);
  await page.keyboard.type("echo hello\n", { delay: 40 });
  await written(page, before);
});

test("the keyboard alone finds, starts, uses and leaves a machine", async ({ page, site }) => {
  await expect(page.locator(".card")).toHaveCount(2);
  await page.keyboard.press("/");
  await page.keyboard.type("shell");
  await expect(page.locator(".card")).toHaveCount(1);
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Start tiny-live:shell" }).focus();
  await page.keyboard.press("Enter");
  await expect(page.locator(".bar-title")).toContainText("Live");
  // the guest has the keyboard at once; Esc gives it back, and once more leaves
  await expect(page.locator(".screen canvas")).toBeFocused();
  await page.keyboard.press("Escape");
  await expect(page.getByRole("button", { name: "Back" })).toBeFocused();
  await page.keyboard.press("Shift+Tab");
  await expect(page.getByRole("application")).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(page.locator(".screen canvas")).toBeFocused();
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  await expect(page.getByRole("heading", { name: "Machines" })).toBeVisible();
  expect(machines(site).map((machine) => machine.status)).toEqual(["running"]);
});

test("arrow keys walk over the catalogue as it is seen, also of two hundred images", async ({ page }) => {
  const images = Array.from({ length: 200 }, (_, index) => ({
    id: index.toString(16).padStart(64, "0"),
    names: [`image-${index}:${index % 2 ? "odd" : "even"}`],
    created_unix_s: 1_700_000_000 - index,
    stored_bytes: 1e6 * index,
    virtual_bytes: 1e9,
    live: true,
    thumbnail: false,
    labels: {},
    start_ms: index,
  }));
  await page.route("**/v1/images", (route) => route.fulfill({ json: { images } }));
  await page.reload();
  await expect(page.locator(".card")).toHaveCount(200);
  const cards = page.locator(".card-open");
  await cards.first().focus();
  await page.keyboard.press("ArrowRight");
  await expect(cards.nth(1)).toBeFocused();
  const columns = await page.locator(".grid").evaluate((grid) => getComputedStyle(grid).gridTemplateColumns.split(" ").length);
  await page.keyboard.press("ArrowDown");
  await expect(cards.nth(1 + columns)).toBeFocused();
  await page.keyboard.press("End");
  await expect(cards.last()).toBeFocused();
  await page.getByRole("button", { name: "odd", exact: true }).click();
  await expect(page.locator(".card")).toHaveCount(100);
  await page.getByRole("searchbox").fill("image-151");
  await expect(page.locator(".card")).toHaveCount(1);
});

test("nothing stands in a screen reader's way, in light and dark", async ({ page }) => {
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    await expect(page.locator(".card").first()).toBeVisible();
    const ground = await page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    const bright = (ground.match(/\d+/g) ?? []).map(Number).reduce((sum, value) => sum + value, 0) > 380;
    expect(bright).toBe(colorScheme === "light");
    expect(await barriers(page)).toEqual([]);
    await page.keyboard.press("a");
    await expect(page.getByRole("dialog", { name: "Add an image" })).toBeVisible();
    expect(await barriers(page)).toEqual([]);
    await page.keyboard.press("Escape");
  }
  for (const landmark of ["banner", "main", "search", "navigation"] as const)
    await expect(page.getByRole(landmark)).toHaveCount(1);
  await page.emulateMedia({ colorScheme: "light" });
  await launch(page);
  expect(await barriers(page)).toEqual([]);
  await expect(page.getByRole("status").filter({ hasText: "The screen is live." })).toHaveCount(1);
});

test("two browsers see and use the same machine", async ({ page, browser, site, errors }) => {
  const name = await launch(page);
  const context = await browser.newContext();
  const other = await context.newPage();
  watch(other, errors);
  await other.goto(site.login);
  await other.getByRole("button", { name: `Show the screen of ${name}` }).click();
  await expect(other.locator(".bar-title")).toContainText("Live");
  const before = await settled(page);
  expect(Math.abs((await settled(other)) - before)).toBeLessThan(WORD);
  await other.keyboard.type("echo both\n", { delay: 40 });
  await written(page, before);
  // one leaves, the other goes on
  await context.close();
  const then = await settled(page);
  await page.keyboard.type("echo still\n", { delay: 40 });
  await written(page, then);
});

test("a machine that buffers says so and for how long; it gets what is typed meanwhile, and does not mind when a browser goes", async ({ browser, site, errors }) => {
  test.setTimeout(300_000); // two nodes, a guest that works, a slow link
  const image = `${site.hub}/tiny-live:shell`;
  const work = "for i in 1 2 3 4 5 6; do find / -xdev > /dev/null; ps > /dev/null; sleep 2; done; echo worked-$((1+1))";
  // somebody uses it near the hub, which learns what that touches
  const near = await start();
  const far = await start();
  const link = await slowLink(new URL(site.hub));
  try {
    floe(near.site, "run", image, "--name", "teacher", "--token", hubToken(site));
    await onConsole(near.site, "teacher", work, "worked-2");
    floe(near.site, "stop", "teacher", "--now");
    const model = `${site.hub}/v1/images/${JSON.parse(floe(site, "image", "inspect", "tiny-live:shell", "--json")).id}/model?method=floe`;
    await expect(async () => expect((await fetch(model)).status).toBe(200)).toPass();
    // far away, its first screen comes late: there is something to see meanwhile
    const page = await browser.newPage();
    watch(page, errors);
    await page.goto(far.site.login);
    await page.goto(`${far.site.page}#/run/${encodeURIComponent(image.replace(site.hub, link.url))}`);
    await page.getByRole("button", { name: "Start", exact: true }).click();
    await expect(page.locator(".veil-title")).toHaveText("Buffering…");
    await expect(page.locator(".veil")).toContainText(/about \d+ \w+ left/);
    await expect(page.getByRole("status").filter({ hasText: "Buffering" })).toHaveCount(1);
    await expect(page.getByRole("progressbar", { name: "Buffered" })).toHaveAttribute("aria-valuenow", /\d+/);
    const name = await page.locator("#screen-title").innerText();
    expect(machines(far.site)).toMatchObject([{ name, status: "buffering" }]);
    // what is typed meanwhile is not lost; a browser that goes changes nothing
    await expect(page.locator(".screen canvas")).toBeFocused();
    const before = await settled(page);
    await page.keyboard.type("ls /\n");
    const other = await browser.newPage();
    watch(other, errors);
    await other.goto(far.site.login);
    await other.getByRole("button", { name: `Show the screen of ${name}` }).click();
    await expect(other.locator(".veil-title")).toHaveText("Buffering…");
    await other.close();
    link.widen();
    await until("the machine to go on", () => machines(far.site)[0]?.status === "running");
    await written(page, before);
  } finally {
    link.close();
    await far.end();
    await near.end();
  }
});

test("a machine and its clones go on from one moment", async ({ page, site }) => {
  const name = await launch(page);
  const before = await settled(page);
  await page.getByRole("button", { name: "Fork" }).click();
  await page.getByLabel("Clones").fill("2");
  expect(await barriers(page)).toEqual([]);
  await page.getByRole("dialog").getByRole("button", { name: "Fork", exact: true }).click();
  await expect(page.getByText(`${name} stood still`)).toBeVisible();
  const family = machines(site).map((machine) => machine.status);
  expect(family).toEqual(["running", "running", "running"]);
  const clone = machines(site).find((machine) => machine.name !== name)?.name ?? "";
  await page.getByRole("button", { name: "Back" }).click();
  await page.getByRole("button", { name: `Show the screen of ${clone}` }).click();
  await expect(page.locator(".bar-title")).toContainText("Live");
  expect(Math.abs((await settled(page)) - before)).toBeLessThan(WORD);
  await page.keyboard.type("echo clone\n", { delay: 40 });
  await written(page, before);
});

test("stopped, it can be started again; captured, it is in the catalogue", async ({ page }) => {
  const name = await launch(page);
  await page.getByRole("button", { name: "Capture" }).click();
  await page.getByLabel("Name of the image").fill("again");
  await page.getByRole("dialog").getByRole("button", { name: "Capture", exact: true }).click();
  await expect(page.getByText("again is captured")).toBeVisible();
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  const question = page.getByRole("dialog", { name: `Stop ${name}?` });
  await expect(question).toContainText("What is in its memory is lost");
  await expect(question.getByRole("button", { name: "Cancel" })).toBeFocused();
  expect(await barriers(page)).toEqual([]);
  await question.getByRole("button", { name: "Switch off" }).click();
  await expect(page.locator(".veil-title")).toHaveText("Stopped");
  await page.getByRole("button", { name: "Start again" }).click();
  await expect(page.locator(".bar-title")).toContainText("Live");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  await expect(page.getByRole("button", { name: `Show the screen of ${name}` })).toBeVisible();
  await expect(page.getByRole("button", { name: "Start again", exact: true }).locator("img")).toBeVisible();
  // the machine stands on its capture, and has to go first
  for (const gone of [name, "again"]) {
    await page.getByRole("button", { name: `Remove ${gone}`, exact: true }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Remove", exact: true }).click();
    await expect(page.getByRole("button", { name: `Remove ${gone}`, exact: true })).toHaveCount(0);
  }
  await expect(page.getByRole("button", { name: "Start again", exact: true })).toHaveCount(0);
});

test("a click on a name shows the machine if it runs, else the details, and starts nothing", async ({ page, site }) => {
  await page.getByRole("heading", { name: "tiny-live:shell" }).click();
  const drawer = page.locator(".drawer");
  await expect(drawer).toContainText("tiny-live:shell");
  await page.keyboard.press("Escape");
  await expect(drawer).toHaveCount(0);
  expect(machines(site)).toEqual([]);
  const name = await launch(page);
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  const heading = page.getByRole("heading", { name, exact: true });
  await heading.click();
  await expect(page.locator(".bar-title")).toContainText("Live");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  floe(site, "stop", name, "--now");
  await expect(page.getByRole("button", { name: `Start ${name} from its disks` })).toBeVisible();
  await heading.click();
  await expect(drawer).toContainText(name);
  expect(machines(site).map((machine) => machine.status)).toEqual(["stopped"]);
});

test("a second run of a captured machine says whose name it has, or is a machine of its own", async ({ page, site }) => {
  const first = await launch(page);
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  // it goes by itself, perhaps before the screen is there
  const notice = page.locator(".notice").filter({ hasText: `goes on as the same machine as ${first}:` }).innerText();
  const second = await launch(page);
  expect(await notice).toContain(`${second} goes on`);
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  await page.getByRole("heading", { name: "tiny-live:shell" }).click();
  const asked = page.waitForRequest((request) => request.method() === "POST" && request.url().endsWith("/v1/machines"));
  await page.locator(".drawer").getByRole("button", { name: "Start as a machine of its own" }).click();
  expect((await asked).postDataJSON()).toMatchObject({ own_identity: true });
  await expect(page.locator(".bar-title")).toContainText("Live");
  const own = await page.locator("#screen-title").innerText();
  const host = (name: string): string => floe(site, "exec", name, "--", "hostname").trim();
  for (const name of [first, second, own]) floe(site, "wait", name, "--for", "answers");
  await until("its own name", () => host(own) === own.replaceAll(".", "-"));
  expect(host(first)).toBe(host(second));
});

test("a disk comes from the page with progress and becomes an image", async ({ page }) => {
  await page.getByRole("button", { name: "Add", exact: true }).click();
  // an empty disk's beginning, so that it is taken for one
  const buffer = Buffer.concat([Buffer.alloc(1 << 20), Buffer.alloc(2 << 20, 7)]);
  const disk = { name: "My Disk.raw", mimeType: "application/octet-stream", buffer };
  await page.getByLabel("Disk (qcow2, raw, vmdk, vdi)").setInputFiles(disk);
  await expect(page.getByLabel("Name")).toHaveValue("my-disk");
  await page.getByRole("button", { name: "Import" }).click();
  await expect(page.getByText("my-disk:latest is here")).toBeVisible();
  await expect(page.getByRole("button", { name: "Start my-disk" })).toBeVisible();
  await page.getByRole("button", { name: "Remove my-disk" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove", exact: true }).click();
  await expect(page.getByRole("button", { name: "Start my-disk" })).toHaveCount(0);
});

test("a disk gets floe's agent on the way in if that is wanted", async ({ page }) => {
  await page.getByRole("button", { name: "Add", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "Add an image" });
  const box = dialog.getByRole("checkbox", { name: "Put floe’s agent into it" });
  await expect(box).toBeDisabled();
  const buffer = Buffer.concat([Buffer.alloc(1 << 20), Buffer.alloc(2 << 20, 7)]);
  await page.getByLabel("Disk (qcow2, raw, vmdk, vdi)").setInputFiles({ name: "bare.raw", mimeType: "application/octet-stream", buffer });
  await box.check();
  const asked = page.waitForRequest((request) => request.url().endsWith("/v1/images/import"));
  await dialog.getByRole("button", { name: "Import" }).click();
  expect((await asked).postDataJSON()).toMatchObject({ agent: "" });
  // there is no system on it, and in a tree that was only built no agent beside floe
  await expect(dialog.getByRole("alert").filter({ hasText: /agent/ })).toBeVisible();
  // without it, it is a disk like any other
  await box.uncheck();
  await dialog.getByRole("button", { name: "Import" }).click();
  await expect(page.getByText("bare:latest is here")).toBeVisible();
  await page.getByRole("button", { name: "Remove bare" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove", exact: true }).click();
  await expect(page.getByRole("button", { name: "Start bare" })).toHaveCount(0);
});

test("what can't be started says why, and what to do", async ({ page }) => {
  await page.goto(`${page.url().split("#")[0]}#/run/${encodeURIComponent("http://127.0.0.1:9/nothing")}`);
  await expect(page.getByRole("heading", { name: "Start nothing?" })).toBeVisible();
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await expect(page.getByRole("heading", { name: "nothing did not start" })).toBeVisible();
  await page.getByRole("button", { name: "Back" }).click();
  await expect(page.getByRole("heading", { name: "Images" })).toBeVisible();
});

test("another web page gets nothing: no list, no screen, no console", { tag: "@core" }, async ({ page, site }) => {
  const name = await launch(page);
  const foreign = createServer((_, answer) => answer.end("<!doctype html><title>elsewhere</title>"));
  await new Promise<void>((resolve) => foreign.listen(0, "127.0.0.1", resolve));
  await page.goto(`http://127.0.0.1:${(foreign.address() as AddressInfo).port}/`);
  const tried = await page.evaluate(
    async ([origin, machine]) => {
      const open = (what: string): Promise<boolean> => {
        const socket = new WebSocket(`${origin?.replace("http", "ws")}/v1/machines/${machine}/${what}`);
        return new Promise((resolve) => {
          socket.onopen = () => resolve(true);
          socket.onerror = () => resolve(false);
        });
      };
      const opened = [await open("vnc"), await open("terminal")];
      const read = await fetch(`${origin}/v1/images`, { credentials: "include" }).then(() => true, () => false);
      return { opened, read };
    },
    [new URL(site.page).origin, name],
  );
  foreign.close();
  expect(tried).toEqual({ opened: [false, false], read: false });
});

test("without the token there is a way in and nothing else", async ({ browser, site }) => {
  const context = await browser.newContext();
  const stranger = await context.newPage();
  await stranger.goto(site.page);
  await expect(stranger.getByText("floe open")).toBeVisible();
  expect((await context.request.get(`${site.page}v1/images`)).status()).toBe(401);
  await context.close();
});

test("the hub shows its catalogue with pictures, and tells how to start an image", { tag: "@core" }, async ({ page, site }) => {
  await page.goto(site.hub);
  const card = page.getByRole("button", { name: "How to start tiny-live:shell" });
  await expect(card.locator("img")).toBeVisible();
  await expect(card.locator("img")).toHaveJSProperty("naturalWidth", 640);
  expect(await barriers(page)).toEqual([]);
  await card.click();
  await expect(page.getByRole("dialog")).toContainText(`floe run ${new URL(site.hub).origin}/tiny-live:shell`);
});
