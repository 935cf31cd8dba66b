/** A node with a captured guest for all tests: `floe up` in a directory of its own, the tiny guest with a shell on its screen. */

import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { appendFileSync, chmodSync, existsSync, mkdtempSync, readFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export interface Site {
  floe: string;
  home: string;
  /** The page, with its token. */
  login: string;
  page: string;
  hub: string;
}

const PATIENCE_MS = 300_000;
/** The variable in which the tests, processes of their own, find the site. */
export const SITE = "FLOE_TEST_SITE";

const repository = join(fileURLToPath(new URL(".", import.meta.url)), "../..");

/** A file of the tiny guest. */
export function guest(file: string): string {
  const path = join(process.env["FLOE_GUESTS"] ?? join(repository, ".cache/guests"), "tiny", file);
  if (!existsSync(path)) throw new Error(`${path} is missing: crates/lab/guests/build tiny DIR`);
  return path;
}

/** The environment of a floe that knows no other node than its own. */
export function environment(home: string): NodeJS.ProcessEnv {
  const { FLOE_SOCKET: _other, ...rest } = process.env;
  return { ...rest, FLOE_HOME: home };
}

/** Runs floe to its end. */
export function floe(site: Pick<Site, "floe" | "home">, ...args: string[]): string {
  const env = environment(site.home);
  return execFileSync(site.floe, args, { env, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], maxBuffer: 1 << 26 });
}

export async function until(what: string, done: () => boolean): Promise<void> {
  const end = Date.now() + PATIENCE_MS;
  while (!done()) {
    if (Date.now() > end) throw new Error(`waited too long for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** The token of a site's own hub. */
export function hubToken(site: Site): string {
  return (JSON.parse(readFileSync(join(site.home, "hub.token"), "utf8")) as { token: string }).token;
}

/** Types a line on a machine's serial console and waits for an answer there. */
export async function onConsole(site: Site, machine: string, line: string, answer: string): Promise<void> {
  const before = floe(site, "logs", machine).length;
  const env = environment(site.home);
  const shell = spawn(site.floe, ["console", machine], { env, stdio: ["pipe", "ignore", "ignore"] });
  shell.stdin.write(`${line}\n`);
  try {
    await until(`${answer} on ${machine}`, () => floe(site, "logs", machine).slice(before).includes(answer));
  } finally {
    shell.kill();
  }
}

/** A node with a hub in a directory of its own, and what ends both with all machines. */
export async function start(): Promise<{ site: Site; end: () => Promise<void> }> {
  const program = process.env["FLOE"] ?? join(repository, "target/debug/floe");
  const home = mkdtempSync(join(tmpdir(), "floe-page-"));
  chmodSync(home, 0o711); // machines have users of their own, who must pass through
  const log = join(home, "up.log");
  const args = ["up", "--listen", "127.0.0.1:0", "--web", "127.0.0.1:0", "--json"];
  const up: ChildProcess = spawn(program, args, {
    env: { ...environment(home), FLOE_LOG: "info" },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let said = "";
  up.stdout?.on("data", (piece: Buffer) => (said += piece.toString()));
  up.stderr?.on("data", (piece: Buffer) => appendFileSync(log, piece));
  const ended = new Promise((resolve) => up.once("exit", resolve));
  const end = async (): Promise<void> => {
    try {
      floe({ floe: program, home }, "down", "--machines");
    } catch {
      up.kill();
    }
    // machines and mount go after the answer, and need what is in the directory
    await ended;
    await rm(home, { recursive: true, force: true, maxRetries: 10, retryDelay: 500 });
  };
  try {
    await until("the node", () => {
      if (up.exitCode !== null) throw new Error(`floe up ended: ${readFileSync(log, "utf8")}`);
      return said.includes("\n");
    });
    const ready = JSON.parse(said) as { hub: { url: string } };
    const where = { floe: program, home };
    const page = JSON.parse(floe(where, "open", "--print", "--json")) as { url: string; login_url: string };
    return { site: { ...where, login: page.login_url, page: page.url, hub: ready.hub.url }, end };
  } catch (error) {
    await end();
    throw error;
  }
}

export default async function setup(): Promise<() => Promise<void>> {
  const { site, end } = await start();
  try {
    const import_ = ["image", "import", "--kernel", guest("vmlinuz"), "--initrd", guest("initrd"), "--name", "tiny"];
    floe(site, ...import_, "--cmdline", "console=ttyS0 console=tty0 init_on_free=1 quiet no_timer_check", "--label", "kind=test");
    floe(site, "run", "tiny", "--name", "maker", "--memory", "256M");
    // its shell, that is: what is typed before is lost
    await until("the guest", () => floe(site, "logs", "maker").includes("tiny#"));
    // the shell on the screen gets a terminal of its own
    const shell = "setsid sh -c 'exec sh -i </dev/tty1 >/dev/tty1 2>&1' & echo shell-$((1+1))";
    await onConsole(site, "maker", shell, "shell-2");
    floe(site, "wait", "maker", "--for", "answers");
    floe(site, "capture", "maker", "--name", "tiny-live:shell", "--rehearse", "1");
    floe(site, "rm", "maker", "--force");
    floe(site, "push", "tiny-live:shell", site.hub, "--public");
    process.env[SITE] = JSON.stringify(site);
  } catch (error) {
    await end();
    throw error;
  }
  return end;
}
