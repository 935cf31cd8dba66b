/** A finger on the guest's screen is an input like a key: what the guest reads next goes first. */

import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { floe, guest, until, type Site } from "./setup";
import { expect, machines, test, watch } from "./site";

const NAME = "touched";
const DISK_BYTES = 8 << 20;
/** Between two inputs of a person: longer than reads are taken for answers to one. */
const PAUSE_MS = 5_000;
/** On a busy host a guest may begin too late for an answer. */
const TRIES_MAX = 20;

interface Known {
  inputs: number;
  interactive: { served: number };
}

function known(site: Site): Known {
  return JSON.parse(floe(site, "io", "show", NAME, "--json")) as Known;
}

/** Has the guest read what this host has on its own disk only. Nobody types for that. */
function read(site: Site): void {
  // with nothing to copy, dd has the host forget a file; one that has gone meanwhile needs no forgetting
  const forget = 'for file; do sync "$file"; dd if="$file" iflag=nocache count=0; done; true';
  const files = [site.home, "-path", join(site.home, "mnt"), "-prune", "-o", "-type", "f"];
  execFileSync("sh", ["-c", 'find "$@" || true', "sh", ...files, "-exec", "sh", "-c", forget, "sh", "{}", "+"], { stdio: "ignore" });
  floe(site, "exec", NAME, "--", "sh", "-c", "echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vda of=/dev/null bs=64k skip=16 count=16");
}

test.afterEach(({ site }) => {
  for (const machine of machines(site)) floe(site, "rm", machine.name, "--force");
});

test("what a guest reads after a tap on its screen goes first", async ({ browser, site, errors }) => {
  test.setTimeout(600_000); // one boot, and a person's pauses
  const disk = join(site.home, "touched.raw");
  // begins as an empty disk does, and then no two chunks are alike: no file system explains it
  const bytes = Buffer.alloc(DISK_BYTES);
  for (let at = 1 << 20; at < DISK_BYTES; at += 8) bytes.writeDoubleLE(Math.sin(at), at);
  writeFileSync(disk, bytes);
  const cmdline = readFileSync(guest("cmdline"), "utf8").trim();
  floe(site, "image", "import", disk, "--kernel", guest("vmlinuz"), "--initrd", guest("initrd"), "--cmdline", cmdline, "--name", NAME);
  const context = await browser.newContext({ hasTouch: true });
  try {
    floe(site, "run", NAME, "--name", NAME, "--memory", "256M", "--wait", "agent");
    read(site);
    expect(known(site)).toMatchObject({ inputs: 0, interactive: { served: 0 } });
    const page = await context.newPage();
    watch(page, errors);
    await page.goto(site.login);
    await page.getByRole("button", { name: `Show the screen of ${NAME}` }).click();
    await page.getByRole("button", { name: "Screen", exact: true }).click();
    await expect(page.locator(".bar-title")).toContainText("Live");
    const screen = page.locator(".screen canvas");
    await expect(screen).toBeVisible();
    for (let tries = 0; ; tries += 1) {
      expect(tries, "a read after a tap goes first").toBeLessThan(TRIES_MAX);
      // who does something without a pause can't be told from who waits for nothing
      await page.waitForTimeout(PAUSE_MS);
      const before = known(site);
      await screen.tap();
      await until("the tap is counted", () => known(site).inputs > before.inputs);
      read(site);
      if (known(site).interactive.served > before.interactive.served) break;
    }
  } finally {
    await context.close();
    floe(site, "rm", NAME, "--force");
    floe(site, "image", "rm", NAME, "--force");
  }
});
