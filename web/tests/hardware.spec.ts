/** A machine's size, disks and cards, changed in its drawer while it runs. */

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { floe, until } from "./setup";
import { barriers, expect, machines, test } from "./site";

test.afterEach(({ site }) => {
  for (const machine of machines(site)) floe(site, "rm", machine.name, "--force");
});

test("a machine is given processors, memory, disks and a card in its drawer, and they are taken away again", async ({ page, site }) => {
  test.setTimeout(600_000); // one boot, and guests that take their time
  floe(site, "run", "tiny", "--name", "web", "--memory", "256M", "--cmdline", "console=ttyS0 quiet no_timer_check", "--wait", "agent");
  const has = (): { cpus: number; memory_bytes: number; disks?: string[]; cards?: string[] } =>
    JSON.parse(floe(site, "ps", "web", "--json")) as never;
  await page.reload();
  await page.getByRole("button", { name: "Details of web", exact: true }).click();
  const drawer = page.locator(".drawer");
  await expect(drawer.getByRole("button", { name: "Size" })).toBeVisible();
  expect(await barriers(page)).toEqual([]);

  // up to what it can have while it runs
  await drawer.getByRole("button", { name: "Size" }).click();
  const size = page.getByRole("dialog", { name: "Size of web" });
  await expect(size.getByLabel("CPUs")).toHaveAttribute("max", "8");
  await size.getByLabel("CPUs").fill("2");
  await size.getByLabel("Memory in MiB").fill("384");
  expect(await barriers(page)).toEqual([]);
  await size.getByRole("button", { name: "Change" }).click();
  await expect(size).toHaveCount(0);
  expect(has()).toMatchObject({ cpus: 2, memory_bytes: 384 << 20 });

  // and down, with the other one as it is
  await drawer.getByRole("button", { name: "Size" }).click();
  await size.getByLabel("CPUs").fill("1");
  await size.getByRole("button", { name: "Change" }).click();
  await expect(size).toHaveCount(0);
  expect(has()).toMatchObject({ cpus: 1, memory_bytes: 384 << 20 });

  // an empty disk, and one from this browser's host
  await drawer.getByRole("button", { name: "Attach" }).click();
  const attach = page.getByRole("dialog", { name: "Attach to web" });
  await attach.getByLabel("Size in GiB").fill("1");
  await attach.getByRole("button", { name: "Attach" }).click();
  await expect(attach).toHaveCount(0);
  await expect(drawer).toContainText("data (disk1), 1.0 GiB");
  const file = join(site.home, "words.raw");
  writeFileSync(file, Buffer.concat([Buffer.from("words"), Buffer.alloc(8192)]));
  await drawer.getByRole("button", { name: "Attach" }).click();
  await attach.getByLabel("What").selectOption("file");
  await attach.getByLabel("Name").fill("data");
  await attach.getByLabel("File (qcow2, raw, vmdk, vdi)").setInputFiles(file);
  await attach.getByRole("button", { name: "Attach" }).click();
  // what is refused stands in the dialog
  await expect(attach.locator("form").getByRole("alert")).toContainText("has a disk data already");
  await attach.getByLabel("Name").fill("words");
  await attach.getByRole("button", { name: "Attach" }).click();
  await expect(attach.locator("form").getByRole("alert")).toContainText("nothing that looks like a disk");
  await attach.getByLabel("Raw bytes").check();
  expect(await barriers(page)).toEqual([]);
  await attach.getByRole("button", { name: "Attach" }).click();
  await expect(attach).toHaveCount(0);
  expect(has().disks).toEqual(["data", "words"]);
  await until("the disk", () => floe(site, "exec", "web", "--", "sh", "-c", "head -c 5 /dev/vdb || true").includes("words"));

  // a card, which goes again; so does a disk, once that was asked
  await drawer.getByRole("button", { name: "Attach" }).click();
  await attach.getByLabel("What").selectOption("card");
  await attach.getByRole("button", { name: "Attach" }).click();
  await expect(drawer.getByRole("button", { name: "Detach nic1" })).toBeVisible();
  await drawer.getByRole("button", { name: "Detach nic1" }).click();
  await expect(drawer.getByRole("button", { name: "Detach nic1" })).toHaveCount(0);
  await drawer.getByRole("button", { name: "Detach data" }).click();
  await page.getByRole("dialog", { name: "Detach data of web?" }).getByRole("button", { name: "Detach" }).click();
  await expect(drawer.getByRole("button", { name: "Detach data" })).toHaveCount(0);
  expect(has().disks).toEqual(["words"]);
});

test("a machine is lent to a node that this one is paired with, and recalled, in its drawer", async ({ page, site }) => {
  floe(site, "run", "tiny", "--name", "web", "--memory", "256M", "--cmdline", "console=ttyS0 quiet no_timer_check");
  const drawer = page.locator(".drawer");
  const opened = async (): Promise<void> => {
    await page.reload();
    await page.getByRole("button", { name: "Details of web", exact: true }).click();
    await expect(drawer.getByRole("button", { name: "Size" })).toBeVisible();
  };
  // paired with none
  await opened();
  await expect(drawer.getByRole("button", { name: "Offload" })).toHaveCount(0);

  const member = (name: string, own: boolean) => ({ name, url: "https://192.0.2.1:7071", authority: !own, this: own });
  const members = [member("cloud", false), member("phone", true)];
  await page.route("**/v1/cluster", (route) => route.fulfill({ json: { joined: true, name: "phone", members } }));
  const asked: unknown[] = [];
  const answers = async (path: string, outcome: object): Promise<void> => {
    await page.route(`**/v1/machines/web/${path}`, (route) => {
      asked.push(route.request().postDataJSON());
      const body = `${JSON.stringify({ event: "done", total_ms: 1, ...outcome })}\n`;
      return route.fulfill({ contentType: "application/x-ndjson", body });
    });
  };
  await answers("move", { moved: { to: "cloud", wire_bytes: 1, down_ms: 900 } });
  await opened();
  await drawer.getByRole("button", { name: "Offload" }).click();
  const lend = page.getByRole("dialog", { name: "Offload web" });
  await expect(lend.getByRole("option")).toHaveText(["cloud"]);
  await lend.getByLabel("CPUs there").fill("4");
  expect(await barriers(page)).toEqual([]);
  await lend.getByRole("button", { name: "Offload" }).click();
  await expect(lend).toHaveCount(0);
  await expect(page.getByText("web is on cloud").first()).toBeVisible();
  expect(asked).toEqual([{ to: "cloud", lend: true, cpus: 4 }]);

  // it is there
  await page.route("**/v1/machines/web", async (route) => {
    const response = await route.fetch();
    const moves = { standing: "lent", node: "cloud" };
    await route.fulfill({ response, json: { ...(await response.json()), moves } });
  });
  await answers("recall", {});
  await opened();
  await drawer.getByRole("button", { name: "Recall" }).click();
  const recall = page.getByRole("dialog", { name: "Recall web" });
  await expect(recall).toContainText("It comes back from cloud");
  expect(await barriers(page)).toEqual([]);
  await recall.getByRole("button", { name: "Recall" }).click();
  await expect(recall).toHaveCount(0);
  expect(asked).toHaveLength(2);
  await page.unrouteAll({ behavior: "wait" });
});
