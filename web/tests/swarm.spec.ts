/** Two nodes that bring each other an image, as their pages and its hub's tell it. */

import type { Locator, Page } from "@playwright/test";
import { bytes } from "../src/format";
import { floe, hubToken, start, until, type Site } from "./setup";
import { barriers, expect, test, watch } from "./site";

interface Report {
  key: string;
  swarms: {
    image: string;
    pieces: number;
    pieces_here: number;
    complete: number;
    sent_bytes: number;
    peers: { key: string; sent_bytes: number; received_bytes: number }[];
  }[];
}

const report = (where: Site): Report => JSON.parse(floe(where, "swarm", "status", "--json")) as Report;

function hasAll(where: Site): boolean {
  const [swarm] = report(where).swarms;
  return swarm !== undefined && swarm.pieces > 0 && swarm.pieces_here === swarm.pieces;
}

/** The row of a node in the table of who gave how much. */
const row = (swarms: Locator, where: Site): Locator => swarms.getByRole("row").filter({ hasText: report(where).key.slice(0, 12) });

/** What a node says that it has given to another one and got from it. How much that is depends on how soon they meet: what came from the hub before is not in it. */
function between(where: Site, other: Site): { gave: string; got: string } {
  const key = report(other).key;
  const peer = report(where).swarms[0]?.peers.find((peer) => peer.key === key);
  return { gave: bytes(peer?.sent_bytes ?? 0), got: bytes(peer?.received_bytes ?? 0) };
}

/** The columns after a node's name. */
const [STATE, GAVE, GOT] = [0, 2, 3];

test("who gave how much of an image is on the pages of the nodes that bring it to each other", async ({ page, browser, site, errors }) => {
  test.setTimeout(300_000); // a second node, and all of an image from the first
  const image = `${site.hub}/tiny-live:shell`;
  const seed = (where: Site, end: string): void => void floe(where, "swarm", "seed", image, "--until", end, "--token", hubToken(site));
  const far = await start();
  try {
    seed(site, "3");
    await until("all of it on the first node", () => hasAll(site));
    seed(far.site, "0");
    await until("all of it on the second", () => hasAll(far.site));

    const swarms = page.getByRole("region", { name: "Swarms" });
    await expect(swarms.getByRole("heading", { name: "tiny-live:shell" })).toBeVisible();
    await expect(swarms).toContainText("given until 3 others have had all of it");
    await expect(swarms).toContainText("have had all of it: 1");
    await expect(swarms).toContainText(/what none of them has: connected to 1 of \d+ other nodes? that the hub lists\./);
    await expect(row(swarms, far.site).getByRole("cell").nth(STATE)).toHaveText("connected");
    await expect(row(swarms, far.site).getByRole("cell").nth(GOT)).toHaveText(between(site, far.site).gave);
    // it had all of it before
    const hub = swarms.getByRole("row").filter({ hasText: "the hub" });
    await expect(hub.getByRole("cell").nth(GAVE)).toHaveText("0 B");
    expect(await barriers(page)).toEqual([]);
    await page.getByRole("searchbox").fill("nothing like it");
    await expect(swarms).toHaveCount(0);

    const there = await browser.newPage();
    watch(there, errors);
    await there.goto(far.site.login);
    const theirs = there.getByRole("region", { name: "Swarms" });
    await expect(row(theirs, site).getByRole("cell").nth(GAVE)).toHaveText(between(far.site, site).got);
    await expect(theirs).toContainText("given until floe swarm leave");
    await expect(theirs.getByRole("progressbar", { name: "Pieces on this host" })).toHaveJSProperty("position", 1);
    await there.setViewportSize({ width: 360, height: 740 });
    const tooWide = (): Promise<boolean> => there.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
    expect(await tooWide()).toBe(false);

    // what is over is gone from the page
    floe(far.site, "swarm", "leave", image);
    await expect(theirs).toHaveCount(0);
  } finally {
    await far.end();
    floe(site, "swarm", "leave", image);
  }
});

/** What a node says of a fork whose clones have a parent on another host; nothing of this kind is on one host. */
const FORK = {
  image: "ab".repeat(32),
  hub: "https://10.0.0.7:7071",
  machines: ["web.1"],
  seeding: false,
  complete: 0,
  way: "parent",
  why: "a clone of a fork whose multicast (239.255.1.2) does not pass between its parent's host and this one",
  pieces_here: 0,
  pieces: 0,
  needed: 0,
  window: 0,
  hub_bytes: 0,
  received_bytes: 0,
  sent_bytes: 0,
  lent: { shelf_bytes: 3 << 20, swarm_bytes: 2 << 20, parent_bytes: 1 << 20, swarm_us: 1_200, parent_us: 34_000 },
  peers: [],
};

test("of a fork the page says why multicast does not pass, and from where its clones got what they lacked", async ({ page }) => {
  await page.route("**/v1/swarm", (route) => route.fulfill({ json: { usage: "auto", addresses: [], swarms: [FORK] } }));
  const swarms = page.getByRole("region", { name: "Swarms" });
  await expect(swarms).toContainText(`What its clones lack comes from its parent's host: ${FORK.why}.`);
  const came = "Of what its clones lacked, 3.0 MiB were in pieces here, 2.0 MiB came by a swarm and 1.0 MiB from the parent's host";
  await expect(swarms).toContainText(`${came}; a chunk takes 1.2 ms by the swarm, 34.0 ms from that host.`);
  // no hub gives it, and nobody has all of it
  await expect(swarms.getByRole("table")).toHaveCount(0);
  await expect(swarms).not.toContainText("have had all of it");
  expect(await barriers(page)).toEqual([]);
});

test("the hub's page shows an image's owner, and nobody else, who takes part in its swarm and what the hub gave", async ({ browser, site, errors }) => {
  const image = `${site.hub}/tiny-live:shell`;
  const far = await start();
  const contexts = [await browser.newContext(), await browser.newContext()];
  const open = async (at: number, address: string): Promise<Page> => {
    const page = await contexts[at]!.newPage();
    watch(page, errors);
    await page.goto(address);
    return page;
  };
  try {
    // nobody else takes part: the hub gives all of it
    floe(far.site, "swarm", "seed", image, "--token", hubToken(site));
    await until("all of it", () => hasAll(far.site));

    const owner = await open(0, `${site.hub}/login?token=${encodeURIComponent(hubToken(site))}`);
    await owner.getByRole("button", { name: "How to start tiny-live:shell" }).click();
    const dialog = owner.getByRole("dialog", { name: "tiny-live:shell" });
    await expect(dialog).toContainText("Now: 1.");
    await expect(dialog).toContainText(/The hub gave [1-9]\S* MiB of its pieces/);
    await expect(row(dialog, far.site)).toContainText("yours");
    expect(await barriers(owner)).toEqual([]);
    // it is looked at again
    floe(far.site, "swarm", "leave", image);
    await expect(dialog).toContainText("No node does now.");

    const stranger = await open(1, site.hub);
    const refused = stranger.waitForResponse((response) => response.url().endsWith("/swarm"));
    await stranger.getByRole("button", { name: "How to start tiny-live:shell" }).click();
    expect((await refused).status()).toBe(401);
    await expect(stranger.getByRole("dialog")).toContainText("floe run");
    await expect(stranger.getByRole("dialog")).not.toContainText("The hub gave");
  } finally {
    for (const context of contexts) await context.close();
    await far.end();
  }
});
